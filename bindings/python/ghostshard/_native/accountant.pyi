from collections.abc import Sequence

version: str

def opacus_orders() -> list[float]: ...
def epsilons(
    history: Sequence[tuple[float, float, int]], deltas: Sequence[float], *, accountant: str, adjacency: str
) -> list[tuple[float, float, float, str, str, str]]: ...
def deltas(
    history: Sequence[tuple[float, float, int]], epsilons: Sequence[float], *, accountant: str, adjacency: str
) -> list[tuple[float, float, float, str, str, str]]: ...
def rdp_epsilon_at_orders(
    history: Sequence[tuple[float, float, int]], orders: Sequence[float], delta: float
) -> float: ...
def noise_multiplier(
    epsilon: float, delta: float, sampling_rate: float, steps: int, *, accountant: str, adjacency: str
) -> float: ...
