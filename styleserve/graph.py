"""Changes to an ONNX graph, without running it: read, raise the opset, open the sizes, label."""

from collections.abc import Collection, Mapping

import onnx
from google.protobuf.message import DecodeError  # has no stubs
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, version_converter
from onnx.external_data_helper import uses_external_data

from styleserve.errors import ModelError

_OLDEST_IR = 4  # the first in which an initialiser need not be an input as well
_ONNX_ERRORS = (
    version_converter.ConvertError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,  # the converter, where an operator has no adapter
)


def parse(data: bytes, name: str) -> ModelProto:
    """Parse a whole ONNX file and drop the weights from its inputs. Raises ModelError."""
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as err:
        raise ModelError(
            f"{name} is no complete ONNX model ({len(data)} bytes are cut short or something else):"
            " download it again and compare its size and checksum"
        ) from err
    if not model.graph.node or not model.opset_import:
        raise ModelError(
            f"{name} is no whole ONNX model, for it has no nodes or no opset: export it again"
        )
    if any(uses_external_data(tensor) for tensor in model.graph.initializer):
        raise ModelError(f"{name} keeps its weights in another file: save it as one file")
    _drop_weight_inputs(model)
    return model


def _drop_weight_inputs(model: ModelProto) -> None:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, _OLDEST_IR)


def opset_of(model: ModelProto) -> int:
    """Return the version of the standard operators that a model uses."""
    standard = ("", "ai.onnx")
    versions = [int(entry.version) for entry in model.opset_import if entry.domain in standard]
    return max(versions, default=0)


def picture_size(model: ModelProto, name: str) -> tuple[int | None, int | None]:
    """Return the height and width that the model takes, None where one is open.

    Raises ModelError unless it has one input and one output, float32, and takes 1 x 3 x H x W.
    """
    for way, values in (("input", model.graph.input), ("output", model.graph.output)):
        if len(values) != 1:
            found = ", ".join(_tell(value) for value in values) or "none"
            raise ModelError(f"{name} has {len(values)} {way}s ({found}): one picture is wanted")
        if values[0].type.tensor_type.elem_type != TensorProto.FLOAT:
            raise ModelError(f"{name} has the {way} {_tell(values[0])}: float32 is wanted")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    sizes = [dim.dim_value if dim.dim_value > 0 else None for dim in dims]
    if len(sizes) != 4 or sizes[1] != 3 or sizes[0] not in (1, None):
        found = _tell(model.graph.input[0])
        raise ModelError(f"{name} has the input {found}: 1 x 3 x height x width is wanted")
    return sizes[2], sizes[3]


def _tell(value: ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = "x".join(str(dim.dim_value or dim.dim_param or "?") for dim in tensor.shape.dim)
    return f"{value.name} {TensorProto.DataType.Name(tensor.elem_type).lower()} {dims}".rstrip()


def to_opset(model: ModelProto, opset: int, name: str) -> ModelProto:
    """Return the model in another opset, without the shapes noted inside. Raises ModelError."""
    before = opset_of(model)
    try:
        converted = version_converter.convert_version(model, opset) if opset != before else model
    except _ONNX_ERRORS as err:
        reason = str(err).rpartition("failed: ")[2]  # without the converter's own source line
        raise ModelError(
            f"{name} cannot be converted from opset {before} to {opset} ({reason}): "
            "export it again at that opset, or choose another"
        ) from err
    del converted.graph.value_info[:]
    needed = helper.find_min_ir_version_for(converted.opset_import, ignore_unknown=True)
    converted.ir_version = max(converted.ir_version, needed)
    return converted


def with_shape(
    model: ModelProto, shape: tuple[int, int, int, int], open_axes: Collection[int]
) -> ModelProto:
    """Copy the model with this output shape; the axes named stay open in and out."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for way, value in (("in", copy.graph.input[0]), ("out", copy.graph.output[0])):
        names = {0: "batch", 2: f"height_{way}", 3: f"width_{way}"}
        sizes = (shape[0], 3 if way == "in" else shape[1], *shape[2:])
        dims = [names[axis] if axis in open_axes else size for axis, size in enumerate(sizes)]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, dims))
    return copy


def with_outputs(model: ModelProto, names: Collection[str]) -> ModelProto:
    """Copy the model, giving out these inner float32 values too."""
    copy = ModelProto()
    copy.CopyFrom(model)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    copy.graph.output.extend(values)
    return copy


def label(model: ModelProto, labels: Mapping[str, str], name: str) -> bytes:
    """Check the model, write the labels that are not empty into its metadata, return the file.

    Raises ModelError.
    """
    kept = {prop.key: prop.value for prop in model.metadata_props if prop.key not in labels}
    added = {key: value for key, value in labels.items() if value}
    helper.set_model_props(model, {**kept, **added})
    try:
        onnx.checker.check_model(model, full_check=True)
    except _ONNX_ERRORS as err:
        raise ModelError(f"{name} converted is not a valid model: {err}") from err
    return bytes(model.SerializeToString(deterministic=True))


def suspect(model: ModelProto) -> str:
    """Name what is known to compute something else in newer opsets, as the end of a sentence."""
    modes = [
        attribute.s.decode()
        for node in model.graph.node
        if node.op_type == "Upsample"
        for attribute in node.attribute
        if attribute.name == "mode"
    ]
    if any(mode != "nearest" for mode in modes):
        return "; its linear Upsample is another operator there: export it again with Resize"
    return "; export it again at that opset, or choose another"


def identity(opset: int) -> bytes:
    """Return the smallest model there is, at an opset."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "identity", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=_OLDEST_IR,
    )
    return bytes(model.SerializeToString())
