"""A declared pipeline as a flowchart in Mermaid, which GitHub shows as a picture."""

from styleserve.declaration import IMAGE, Graph, Node


def draw(graph: Graph) -> str:
    """Return the text of a flowchart: pictures flow from left to right."""
    ids = {name: f"n{number}" for number, name in enumerate((IMAGE, *graph.nodes))}
    lines = ["flowchart LR", f'    {ids[IMAGE]}(["{IMAGE}"])']
    lines += [f"    {ids[node.name]}{_box(node)}" for node in graph.nodes.values()]
    for node in graph.nodes.values():
        here = ids[node.name]
        lines += [f"    {ids.get(name, '?')} --> {here}" for name in node.inputs]
        if node.fallback:
            lines.append(f"    {ids.get(node.fallback, '?')} -. on error .-> {here}")
    lines.append(f'    {ids.get(graph.output, "?")} --> answer(["answer"])')
    return "\n".join(lines) + "\n"


def _box(node: Node) -> str:
    """Return a box with the name and what runs there; models have double sides."""
    label = f'"{node.name}<br/>{node.model or node.op}"'
    return f"[[{label}]]" if node.model else f"[{label}]"
