"""Serve ONNX image-to-image models behind Triton's endpoints, and a web page that calls them.

tensor -> serving -> check and fit (image) -> ONNX Runtime session (model) -> undo the fit -> tensor
"""

__version__ = "0.1.0"
