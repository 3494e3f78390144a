"""ONNX files to programs and back."""
