"""Who is compared: our server, and those that people could have taken instead."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.comparison.wires import V2, GrpcBytes, Numbers, Raw, Wire

IN_PROCESS = "in process"


@dataclass(frozen=True)
class Side:
    """A server: `peer` names its file and its requirements in benchmarks/peers; ours has none."""

    name: str
    peer: str
    binary: Wire
    numbers: Wire
    ports: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True  # answers in fp32; else they need only be close

    def wire(self, numbers: bool) -> Wire:
        """Return the way that a workload takes."""
        return self.numbers if numbers else self.binary


def ours(name: str, exact: bool = True, **environment: str) -> Side:
    """Return our server with some settings."""
    ways = V2("styled_image", binary=True), V2("styled_image", binary=False)
    return Side(name, "", *ways, 3, environment, exact)


SIDES = (
    ours("styleserve", exact=False),  # int8 and bf16 where the CPU has them
    ours("styleserve fp32", STYLESERVE_PRECISION="fp32"),
    Side("FastAPI", "fastapi", Raw("/{style}"), Numbers("/{style}/json")),
    Side("LitServe", "litserve", Raw("/predict"), Numbers("/predict")),
    Side("BentoML", "bentoml", Raw("/bytes/{style}"), Numbers("/stylise")),
    Side("MLServer", "mlserver", GrpcBytes(), V2("styled", binary=False), 3),
    Side(
        "PyTriton",
        "pytriton",
        V2("styled", binary=True, batched=True),
        V2("styled", binary=False, batched=True),
        3,
    ),
)
