"""Networks and questions that others wrote, and ours for them: ONNX files and VNN-LIB queries."""
