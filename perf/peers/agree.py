"""Whether two results agree, by one of these rules.

bits       the same bytes; with last_word, of the last column those that this mask of an int32 shows
few        the same bytes, but for this fraction of the elements
ulp        bf16 values at most so many representable values apart
close      |a - b| <= atol + rtol |b|, but for this fraction of the elements
calc_diff  sum (a - b)^2 / sum (a^2 + b^2) below a limit (the measure of the peers' own tests)"""

import torch

CHUNK = 1 << 26  # elements at a time: results of several GB have no room for float64 copies
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pieces(a, b):
    if a.numel() != b.numel():
        raise ValueError(f"{tuple(a.shape)} against {tuple(b.shape)}")
    b = b.reshape(a.shape)
    rows = max(1, CHUNK // max(1, a[0].numel())) if a.dim() else 1
    for part_a, part_b in zip(a.split(rows), b.split(rows)) if a.dim() else [(a, b)]:
        yield part_a, part_b


def differing(a, b):
    """Elements whose bytes differ."""
    return sum(int((x.view(WHOLE[x.element_size()]) != y.view(WHOLE[y.element_size()])).sum()) for x, y in pieces(a, b))


def masked(x, mask):
    """int32 [rows, columns] with only these bits of the last column."""
    x = x.clone()
    x[:, -1] &= mask
    return x


def ordered(x):
    """bf16 as integers in the order of the values; both zeros are 0."""
    bits = x.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def agree(rule, a, b):
    """(whether, in words) of Portile's `a` and the peer's `b`."""
    kind = rule["rule"]
    if "last_word" in rule:
        a, b = masked(a, rule["last_word"]), masked(b, rule["last_word"])
    if kind in ("bits", "few") or kind == "ulp":
        if a.element_size() != b.element_size():
            return False, f"{a.dtype} against {b.dtype}"
    count = max(a.numel(), 1)
    differ = differing(a, b) if a.element_size() == b.element_size() else count
    if differ == 0:
        return True, "bits"
    share = f"{differ} of {count} differ"
    if kind == "bits":
        return False, share
    if kind == "few":
        return differ <= rule["fraction"] * count, share
    if kind == "ulp":
        if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16:
            return False, f"ulp rule for {a.dtype} and {b.dtype}"
        most = max(int((ordered(x) - ordered(y)).abs().max()) for x, y in pieces(a, b))
        return most <= rule["ulp"], f"{share}, {most} ulp at most"
    if kind == "close":
        outside, largest = 0, 0.0
        for x, y in pieces(a, b):
            x, y = x.double(), y.double()
            gap = (x - y).abs()
            fine = (gap <= rule["atol"] + rule["rtol"] * y.abs()) | (x == y) | (x.isnan() & y.isnan())
            outside += int((~fine).sum())
            largest = max(largest, float((gap / y.abs().clamp_min(1e-30)).nan_to_num(0.0, 0.0, 0.0).max()))
        return outside <= rule["fraction"] * count, f"{share}, {outside} by too much, relative error {largest:.1e} at most"
    if kind == "calc_diff":
        above = below = 0.0
        for x, y in pieces(a, b):
            x, y = x.double(), y.double()
            if not bool((x.isfinite() == y.isfinite()).all()):
                return False, "not finite at different places"
            keep = x.isfinite()
            x, y = torch.where(keep, x, 0.0), torch.where(keep, y, 0.0)
            above += float(((x - y) ** 2).sum())
            below += float((x * x + y * y).sum())
        value = above / below if below else 0.0
        return value <= rule["limit"], f"{share}, calc_diff {value:.1e}"
    raise ValueError(f"no rule {kind}")


def agree_all(rules, ours, theirs, rows=None):
    """(whether, in words) over every field that the peer returned; lists element by element. `rows`: a mask of the
    rows whose results are defined, for every field of as many rows."""
    whole, words = True, []
    for name, peer in theirs.items():
        mine = ours[name]
        if rows is not None and mine.shape[0] == rows.numel():
            mine, peer = mine[rows], peer[rows]
        pairs = zip(mine, peer, strict=True) if isinstance(mine, list) else [(mine, peer)]
        verdicts = [agree(rules[name], a, b) for a, b in pairs]
        good = all(ok for ok, _ in verdicts)
        whole = whole and good
        text = next((t for ok, t in verdicts if not ok), None) or next((t for _, t in verdicts if t != "bits"), "bits")
        words.append(f"{name}: {'' if good else 'NOT '}{text}" if text != "bits" else f"{name}: bits")
    return whole, "; ".join(words)
