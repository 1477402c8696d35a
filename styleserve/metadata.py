"""What `convert` and `quantize` write and the server reads: keys of metadata, and a suffix."""

SOURCE_SHA256 = "styleserve.source_sha256"
SOURCE_NAME = "styleserve.source_name"
SIZE_MULTIPLE = "styleserve.size_multiple"  # only in models of any size
TOOLS = "styleserve.tools"
DESCRIPTION = "styleserve.description"
REWRITTEN = "styleserve.rewritten"  # layers, see `styleserve.rewrite`
OPSET = "styleserve.opset"

INT8_OF = "styleserve.int8_of"  # SHA-256 of the model that the layers in 8 bits are of
INT8_SUFFIX = ".int8"  # of the file beside a model which has layers in 8 bits
