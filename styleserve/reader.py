"""Read a file of pipelines: YAML text to typed nodes, each fault with its line."""

import reprlib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from styleserve.declaration import IMAGE, Declaration, Graph, Node, nearest, suggest
from styleserve.errors import ConfigError
from styleserve.kinds import options_of
from styleserve.operations import OPERATIONS

TIMEOUT_S, LONGEST_S = 300.0, 86_400.0
MOST_NODES = 100
# What PyYAML raises on texts that it cannot make sense of, such as `!!bool maybe`.
_NO_YAML = yaml.YAMLError, ValueError, AttributeError, RecursionError, LookupError, ArithmeticError
DEEPEST, MOST_VALUES = 8, 100_000  # an alias of YAML may contain itself, or many more

At = tuple[str | int, ...]  # the way to a value: ("painted", "nodes", "mask")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class _Header(_Strict):
    description: str = ""
    nodes: dict[str, Any] = Field(min_length=1)
    output: str = Field(min_length=1)
    timeout: float = Field(TIMEOUT_S, gt=0, le=LONGEST_S)


class _Step(_Strict):
    inputs: list[str] = [IMAGE]
    on_error: Annotated[str, Field(pattern=r"^use \S+$")] = ""


class _ModelStep(_Step):
    model: str = Field(min_length=1)


Schema = TypeVar("Schema", bound=BaseModel)


def read(path: Path) -> Declaration:
    """Read a file of pipelines, of which an empty one declares none.

    Raises:
        ConfigError: if there is no such file, it is no YAML, or a name in it is no text.
    """
    try:
        return _Reader(path).read(yaml.compose(path.read_text(), yaml.SafeLoader))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; set STYLESERVE_PIPELINES to another file"
        ) from error
    except _NO_YAML as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or error
        raise ConfigError(f"{path}{line}: this is no YAML: {what}; mend the file") from error


@cache
def _schema_of(operation: str) -> type[_Step]:
    """Return what a node with this operation may say: its options too."""
    options: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is one.empty else one.default)
        for one in options_of(operation)
    }
    return create_model(operation, __base__=_Step, op=(str, ...), **options)


class _Reader:
    """Turns YAML into a declaration, and remembers in which line everything stood."""

    def __init__(self, path: Path) -> None:
        self._declared = Declaration(path)
        self._lines: dict[At, int] = {(): 1}
        self._values = 0

    def read(self, root: yaml.Node | None) -> Declaration:
        data = self._plain(root, ()) if root else None
        if not isinstance(data, dict | None):
            raise ConfigError(f"{self._declared.path}: a file of pipelines maps names to pipelines")
        for name, body in (data or {}).items():
            self._declared.lines[name] = self._line((name,))
            self._read_graph(name, body)
        return self._declared

    def _read_graph(self, name: str, body: object) -> None:
        """Read all that can be, so that one fault does not hide the others."""
        header = self._validate(_Header, body, (name,))
        said = body if isinstance(body, dict) else {}
        inner, output = said.get("nodes"), said.get("output")
        if not inner or not isinstance(inner, dict):
            return
        if len(inner) > MOST_NODES:
            self._fault((name,), f"it has {len(inner)} nodes, and at most {MOST_NODES} are allowed")
            return
        nodes = {key: self._read_node(key, raw, (name, "nodes", key)) for key, raw in inner.items()}
        about, timeout = (header.description, header.timeout) if header else ("", TIMEOUT_S)
        end = output if isinstance(output, str) else ""
        self._declared.graphs.append(Graph(name, self._line((name,)), about, nodes, end, timeout))

    def _read_node(self, name: str, raw: object, at: At) -> Node:
        line = self._line(at)
        schema = self._schema(raw, at)
        step = self._validate(schema, raw, at) if schema else None
        if step is None:
            return Node(name, line)
        said = {key: getattr(step, key) for key in type(step).model_fields}
        inputs, fallback = tuple(said.pop("inputs")), said.pop("on_error").removeprefix("use ")
        model, op = said.pop("model", ""), said.pop("op", "")
        return Node(name, line, inputs, model, op, said, fallback)

    def _schema(self, raw: object, at: At) -> type[_Step] | None:
        said = raw if isinstance(raw, dict) else {}
        if ("model" in said) == ("op" in said):
            self._fault(at, "say either which model or which op (operation) it is")
        elif "model" in said:
            return _ModelStep
        elif (name := str(said["op"])) in OPERATIONS:
            return _schema_of(name)
        else:
            self._fault((*at, "op"), f"there is no operation {name!r}; {suggest(name, OPERATIONS)}")
        return None

    def _validate(self, schema: type[Schema], raw: object, at: At) -> Schema | None:
        """Return `raw` as what it should be, or note all that is wrong with it."""
        try:
            return schema.model_validate(raw)
        except ValidationError as error:
            items = error.errors()
            unknown = [_where(item) for item in items if item["type"] == "extra_forbidden"]
            meant = [nearest(name, schema.model_fields) for name in unknown]
            for item in items:
                is_missing = item["type"] == "missing"
                if not (is_missing and _where(item) in meant):
                    loc = item["loc"][:-1] if is_missing else item["loc"]
                    self._fault((*at, *loc), _told(item, schema))
            return None

    def _plain(self, node: yaml.Node, at: At) -> Any:  # noqa: ANN401  whatever YAML can say
        self._lines[at] = node.start_mark.line + 1
        self._values += 1
        if len(at) > DEEPEST or self._values > MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, "too deep or too long", node.start_mark
            )
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*at, number)) for number, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return yaml.SafeLoader("").construct_object(node)
        data = {}
        for key, value in node.value:
            name = self._name(key)
            inner = (*at, name)
            is_twice = name in data
            data[name] = self._plain(value, inner)
            self._lines[inner] = key.start_mark.line + 1
            if is_twice:
                self._fault(inner, f"{name!r} stands here a second time; rename or remove one")
        return data

    def _name(self, key: yaml.Node) -> str:
        if isinstance(key, yaml.ScalarNode):
            return str(key.value)
        got = "list" if isinstance(key, yaml.SequenceNode) else "mapping"
        raise ConfigError(
            f"{self._declared.path}:{key.start_mark.line + 1}: a name is plain text, got a {got}; "
            "write a name before the colon"
        )

    def _line(self, at: At) -> int:
        """Return the line of a value, or of what it is missing in."""
        while at not in self._lines:
            at = at[:-1]
        return self._lines[at]

    def _fault(self, at: At, what: str) -> None:
        node = str(at[2]) if len(at) > 2 and at[1] == "nodes" else ""
        self._declared.fault(self._line(at), str(at[0]), node, what)


def _told(item: Any, schema: type[BaseModel]) -> str:  # noqa: ANN401  pydantic's ErrorDetails
    where = _where(item)
    if item["type"] == "missing":
        return f"{where} is missing"
    if item["type"] == "extra_forbidden":
        return f"there is no {where!r} here; {suggest(where, schema.model_fields)}"
    reason = item["msg"][:1].lower() + item["msg"][1:]
    return f"{where}: {reason}, got {reprlib.repr(item['input'])}" if where else f"{reason}"


def _where(item: Any) -> str:  # noqa: ANN401
    return ".".join(map(str, item["loc"]))
