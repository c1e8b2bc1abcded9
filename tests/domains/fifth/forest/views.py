"""The return of a replay, step by step, for the page."""

from regimen.files import views


def draw_table(name, head, table, config):
    """The sum of rewards so far; None where the table has none."""
    if "reward" not in head:
        return None
    rewards = [float(row[head.index("reward")]) for row in table]
    total = [sum(rewards[: i + 1]) for i in range(len(rewards))]
    line = {"name": config["env"], "x": list(range(len(total))), "y": total}
    return views.series(views.table_title(name, "forest"), [line])
