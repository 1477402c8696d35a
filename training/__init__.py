"""Turn one picture into a style: train a small network on it and export it for the server.

    picture + photos -> Training (network, losses) -> checkpoint -> models/raw/<name>-9.onnx

`python -m training --help` tells how; `training/README.md` tells the rest.
"""
