"""Forward linear bounds: zonotopes and symbolic intervals."""
