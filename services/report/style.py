"""The page's style. One owner has one colour everywhere, in tones that people who see few colours tell apart."""

_LIGHT = {
    "paper": "#ffffff",
    "panel": "#f6f6f4",
    "ink": "#1c1c1a",
    "muted": "#62625c",
    "grid": "#00000018",
    "request": "#e69f00",
    "session": "#0072b2",
    "protected": "#009e73",
    "evictable": "#8fd3be",
    "free": "#e3e3df",
    "idle": "#8a8a84",
    "lost": "#8c2d75",
    "bad": "#c8102e",
    "steps": "#4a4f57",
    "faint": "#a9b0b8",
    "committing": "#8a5a00",
    "returning": "#cc79a7",
}
_DARK = {
    "paper": "#17181a",
    "panel": "#202225",
    "ink": "#e8e8e4",
    "muted": "#a2a29b",
    "grid": "#ffffff1c",
    "request": "#f0ad1f",
    "session": "#3f9fe0",
    "protected": "#17b48a",
    "evictable": "#1f6b58",
    "free": "#34373b",
    "idle": "#85858a",
    "lost": "#d678bd",
    "bad": "#ff5468",
    "steps": "#b4bac4",
    "faint": "#666d76",
    "committing": "#a8792a",
    "returning": "#e39cc4",
}
_COLOURED = ("request", "session", "protected", "evictable", "free", "idle", "lost", "bad", "steps", "faint", "ink")
_KV = {
    "none": "idle",
    "held": "session",
    "lent": "request",
    "committing": "committing",
    "returning": "returning",
    "demoted": "evictable",
    "unknown": "free",
}

_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 28px 48px; max-width: 1360px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 30px 0 4px; }
p { margin: 2px 0; }
.note { color: var(--muted); font-size: 12.5px; max-width: 130ch; margin: 2px 0 6px; }
.state { margin: 10px 0 0; padding: 7px 12px; border-left: 4px solid var(--protected); background: var(--panel); }
.state.wrong { border-color: var(--bad); }
.tiles { display: flex; flex-wrap: wrap; gap: 8px; margin: 6px 0; }
.tile { background: var(--panel); padding: 7px 12px; border-radius: 4px; min-width: 108px; }
.tile b { display: block; font-size: 18px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 12.5px; }
.shares { display: flex; height: 14px; max-width: 720px; margin: 8px 0 4px; border-radius: 3px; overflow: hidden; }
.shares i { display: block; height: 100%; }
.key { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12.5px; margin: 4px 0; }
.key i, #tip i { display: inline-block; width: 11px; height: 11px; margin-right: 6px; vertical-align: -1px; }
.key svg { width: 13px; height: 13px; margin-right: 5px; vertical-align: -3px; }
table { border-collapse: collapse; font-size: 13px; }
th { text-align: left; color: var(--muted); font-weight: 500; }
th, td { padding: 4px 16px 4px 0; vertical-align: top; border-bottom: 1px solid var(--grid);
  overflow-wrap: anywhere; }
td:first-child, td.short { white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font: 12.5px ui-monospace, "DejaVu Sans Mono", monospace; }
summary { cursor: pointer; font-size: 16px; font-weight: 600; margin: 30px 0 6px; }
svg.picture { display: block; width: 100%; height: auto; overflow: visible; break-inside: avoid; }
svg text { fill: var(--ink); font-size: 12px; }
svg .tick { fill: var(--muted); font-size: 11px; }
svg .faint { fill: var(--muted); font-size: 11px; }
svg .value { font-variant-numeric: tabular-nums; }
svg .strong { font-weight: 600; }
svg .mark { fill: var(--bad); font-size: 10.5px; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
.grid { stroke: var(--grid); fill: none; }
.band { stroke-width: 0.8; vector-effect: non-scaling-stroke; }
.drain { fill: url(#hatch); stroke: var(--ink); stroke-width: 0.7; vector-effect: non-scaling-stroke; }
.total-line { fill: none; stroke: var(--ink); stroke-width: 1.2; vector-effect: non-scaling-stroke; }
.area { stroke-width: 0.8; }
.line { fill: none; stroke-width: 1.3; stroke-linejoin: round; }
svg path.line { fill: none; }
.incident { stroke: var(--bad); stroke-width: 1.2; stroke-dasharray: 4 2; fill: none; }
.trouble { fill: var(--bad); fill-opacity: 0.13; }
svg[data-chart="lanes"] .trouble-of { pointer-events: none; }
.cross { stroke: var(--ink); stroke-width: 0.8; visibility: hidden; pointer-events: none; }
.slices rect, .clear path { fill: none; pointer-events: all; }
[class^="mark-"] { fill: none; stroke-width: 1.3; }
.mark-turn { stroke: var(--faint); }
.mark-turn-in { stroke: var(--muted); }
.mark-turn-out { stroke: var(--ink); stroke-width: 2.4; }
.mark-turn-cut { stroke: var(--bad); stroke-width: 1.5; }
.mark-turn-back { stroke: var(--returning); stroke-width: 1.5; }
.mark-forked { stroke: var(--ink); stroke-dasharray: 2 1; }
.mark-truncated { stroke: var(--bad); }
#tip { position: fixed; display: none; pointer-events: none; background: var(--paper); color: var(--ink);
  border: 1px solid var(--muted); border-radius: 4px; padding: 6px 9px; font-size: 12px; max-width: 420px;
  box-shadow: 0 2px 8px #0004; white-space: pre-line; overflow-wrap: anywhere; }
#tip div { display: flex; align-items: center; }
#tip div b { margin-left: auto; padding-left: 16px; font-variant-numeric: tabular-nums; font-weight: 600; }
@page { size: landscape; margin: 12mm; }
@media print {
  h2, .note, .key { break-after: avoid; }
  .shares, .key, .tiles, tr { break-inside: avoid; }
  body { padding: 0; max-width: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def write_style() -> str:
    """The whole style sheet: light, and dark where the reader's system is and nothing is printed."""
    return "\n".join(
        (
            f":root {{ color-scheme: light dark; {_declare(_LIGHT)} }}",
            f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_declare(_DARK)} }} }}",
            _RULES.strip(),
            *(_paint(name) for name in _COLOURED),
            ".swatch.total { fill: var(--ink); background: var(--ink); height: 2px; }",
            ".swatch.draining { fill: url(#hatch); stroke: var(--ink); background: var(--muted); }",
            *(
                f".kv-{state} {{ fill: var(--{colour}); background: var(--{colour}); }}"
                for state, colour in _KV.items()
            ),
            *(f".mark-move.{name} {{ stroke: var(--{name}); }}" for name in _COLOURED),
        )
    )


def _declare(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def _paint(name: str) -> str:
    return (
        f".band.{name}, .area.{name} {{ fill: var(--{name}); stroke: var(--{name}); }} "
        f".line.{name} {{ stroke: var(--{name}); }} "
        f".swatch.{name} {{ fill: var(--{name}); background: var(--{name}); }}"
    )
