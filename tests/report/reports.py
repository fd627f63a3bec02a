"""Plans with hostile text, and contents of small reports, that the tests of reports share."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from ladder_opt.plan.plan import Plan, plan_from_dict
from tests.plan.plans import make_plan

ATTACK = (
    '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=2">\'"><svg onload=pwned()>'
)


def hostile_plan() -> Plan:
    """A plan that tries to be a program wherever a plan may hold text."""
    data: dict[str, Any] = make_plan().to_dict()
    data["baselines"][0]["name"] = "default"
    data["baselines"][2]["name"] = ATTACK
    data["warnings"] = [ATTACK, "a\u202eb\u2028c\0d"]
    data["result"]["stop_reason"] = ATTACK
    data["result"]["status"] = "feasible"
    data["provenance"] |= {
        "version": ATTACK,
        "created": ATTACK,
        "cost_name": ATTACK,
        "inputs": [{"path": ATTACK, "sha256": ATTACK, "rows": 3, "format": ATTACK}],
        "asked": {ATTACK: ATTACK, "replicas": 2, "nested": {ATTACK: [ATTACK]}, "startup_seconds": "x"},
        "replay": {"requests": ATTACK, "rounds": [], "busy_seconds": {}, ATTACK: 1.5},
    }
    data["cost"]["fit"] = {
        "parameters": {"step_seconds.base": {"low": 0.001, "high": 0.1, "unit": ATTACK}},
        "residuals": {ATTACK: ATTACK},
    }
    data["cost"]["name"] = ATTACK[:200]
    return plan_from_dict(_with_digest(data))


def _with_digest(data: dict[str, Any]) -> dict[str, Any]:
    from ladder_opt.cost.model import cost_model_from_dict

    data["provenance"]["cost_sha256"] = cost_model_from_dict(data["cost"]).sha256()
    return data


class Page(HTMLParser):
    """A page taken apart: elements, headings, attributes, text outside scripts and styles."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()
        self.unclosed += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts.append(data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, in single spaces."""
        return re.sub(r"\s+", " ", " ".join(self.words))

    def count(self, tag: str) -> int:
        """Elements of a kind."""
        return sum(name == tag for name, _ in self.elements)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        """Of each element of a kind."""
        return [given for name, given in self.elements if name == tag]
