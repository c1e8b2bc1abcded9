"""Which workflows are equal for an environment, a red agent and a definition of compliance, in words and as data."""

from __future__ import annotations

from typing import Any

from regimen.domains.network_defense.workflow import ALWAYS, ATTACKED, TYPES, all_workflows, classes_for


def classes(red: str, compliance: str) -> dict[str, Any]:
    """The equivalence classes and why there are so few."""
    found = classes_for(red, compliance)
    return {
        "red": red,
        "compliance": compliance,
        "orders": len(all_workflows()),
        "classes": len(found),
        "never_compromised": [unit for unit in TYPES if unit not in ATTACKED[red]],
        "always_compromised": list(ALWAYS[compliance]),
        "members": [
            {
                "priority": list(c.priority),
                "representative": c.representative.name,
                "size": len(c.members),
                "orders": [w.name for w in c.members],
            }
            for c in found
        ],
    }


def lines(report: dict[str, Any]) -> list[str]:
    never, always = report["never_compromised"], report["always_compromised"]
    out = [
        f"network_defense, red {report['red']}, compliance {report['compliance']}: "
        f"{report['orders']} orders, {report['classes']} that can be told apart"
    ]
    if never:
        out.append(f"never compromised, so their place does not matter: {', '.join(never)}")
    if always:
        out.append(f"always compromised, so nothing behind it matters: {', '.join(always)}")
    width = max(len(" > ".join(m["priority"])) for m in report["members"])
    out += ["", f"{'what matters of the order':<{width}}  orders  for example"]
    for m in sorted(report["members"], key=lambda m: (len(m["priority"]), m["priority"])):
        names = [m["representative"], *(name for name in m["orders"] if name != m["representative"])]
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        out.append(f"{' > '.join(m['priority']):<{width}}  {m['size']:>6}  {shown}")
    return out
