"""Keys that `convert` writes into a served model's metadata and that the server reads."""

SOURCE_SHA256 = "styleserve.source_sha256"
SOURCE_NAME = "styleserve.source_name"
SIZE_MULTIPLE = "styleserve.size_multiple"  # only in models of any size
TOOLS = "styleserve.tools"
DESCRIPTION = "styleserve.description"
REWRITTEN = "styleserve.rewritten"  # layers, see `styleserve.rewrite`
OPSET = "styleserve.opset"
