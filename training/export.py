"""Write a trained network in the form of the ONNX model zoo's styles.

Opset 9, one picture of fixed size 1x3x224x224, `input1` to `output1`, RGB 0..255 on both sides,
weights listed among the inputs. The project's conversion stage turns that into what is served.
"""

import warnings
from pathlib import Path

import torch

from training.network import StyleNetwork, folded

OPSET = 9
SIDE_PX = 224


def export_onnx(network: StyleNetwork, path: Path) -> None:
    """Write `network` to `path`, replacing what was there only once the new file is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter for old opsets announces its retirement
        torch.onnx.export(
            folded(network.cpu().float()),
            (torch.zeros(1, 3, SIDE_PX, SIDE_PX),),
            str(partial),
            input_names=["input1"],
            output_names=["output1"],
            opset_version=OPSET,
            dynamo=False,
            keep_initializers_as_inputs=True,
        )
    partial.replace(path)
