"""Draws the pictures of docs/how-it-works.md from what a server answers about its model.

Usage: python docs/images/make_pictures.py URL [URL_OF_A_LARGER_MODEL]

URL is a server with the bundled model: `hearth serve --device cpu`. With a second URL, how-batching.svg is drawn too, from measured
times (a model with a few milliseconds per step, such as SmolLM2-135M). All other pictures are the same each time.
Needs only Python's standard library. The pictures are SVG, readable on light and dark pages.
"""

import base64
import html
import http.client
import json
import math
import pathlib
import struct
import sys
import threading
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
if len(sys.argv) not in (2, 3):
    raise SystemExit(__doc__)
URL = urllib.parse.urlsplit(sys.argv[1])
CONFIG = json.loads((HERE / "../../server/bundled/config.json").read_text())

SENTENCE = "The hedgehogs unwrapped a marmalade sandwich."
STORY = (
    "Once upon a time, a brave fox named Yara lived on a cliff. Her favorite thing was a silver lamp. One day, she lost her lamp."
)
PROMPT = "Once upon a time, a brave fox named Yara lived"
# The beginning of the second tale of `hearth-lab tales --kind stories --seed 2`, with which the model was not trained.
TALE = (
    "Once upon a time, there was a messy pixie named Axel who lived in a toy shop. He liked humming and writing poems. "
    "There was only one problem: Axel was afraid of the night"
)

STYLE = """
.page{fill:#fbf9f6}.ink{fill:#23201d}.quiet{fill:#6a6159}.heat{fill:#ad3d0c}.card{fill:#fff;stroke:#978d82}.soft{fill:#f9e6da;stroke:#ad3d0c}
.line{fill:none;stroke:#6a6159}.grid{fill:none;stroke:#ded6cc}.tip{fill:#6a6159}
@media(prefers-color-scheme:dark){
.page{fill:#191715}.ink{fill:#efe9e2}.quiet{fill:#b0a69b}.heat{fill:#f59a5b}.card{fill:#23201d;stroke:#7d746b}.soft{fill:#3d2618;stroke:#f59a5b}
.line{stroke:#b0a69b}.grid{stroke:#3b3530}.tip{fill:#b0a69b}}
text{font-family:system-ui,sans-serif;font-size:12px}.mono{font-family:ui-monospace,Menlo,Consolas,monospace;white-space:pre}
.small{font-size:10px}.strong{font-weight:600}
"""


def post(path, body):
    connection = http.client.HTTPConnection(URL.hostname, URL.port or 80)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"{path}: {answer['error']['message']}")
    return answer


class Picture:
    def __init__(self, name, width, height, title):
        self.path, self.width, self.height = HERE / f"{name}.svg", width, height
        self.parts = [f"<title>{html.escape(title)}</title>", f"<style>{STYLE.strip()}</style>"]
        self.rect("page", 0, 0, width, height, rx=8)

    def rect(self, kind, x, y, width, height, opacity=None, rx=None):
        more = "" if opacity is None else f' fill-opacity="{opacity:.3f}"'
        more += "" if rx is None else f' rx="{rx}"'
        self.parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{more}/>')

    def text(self, x, y, text, kind="ink", anchor="start", turn=None):
        more = "" if anchor == "start" else f' text-anchor="{anchor}"'
        more += "" if turn is None else f' transform="rotate({turn} {x:.1f} {y:.1f})"'
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(text)}</text>')

    def path_of(self, d, kind="line"):
        self.parts.append(f'<path class="{kind}" d="{d}"/>')

    def arrow(self, x0, y0, x1, y1):
        """Straight, down or to the right."""
        self.path_of(f"M{x0} {y0}L{x1} {y1}")
        down = x0 == x1
        wings = (x1 - 4, y1 - 6, x1 + 4, y1 - 6) if down else (x1 - 6, y1 - 4, x1 - 6, y1 + 4)
        self.path_of(f"M{x1} {y1}L{wings[0]} {wings[1]}L{wings[2]} {wings[3]}Z", "tip")

    def box(self, x, y, width, height, title, *lines, kind="card"):
        self.rect(kind, x, y, width, height, rx=5)
        top = y + height / 2 + 4 - 7.5 * len(lines)
        self.text(x + width / 2, top, title, "ink strong", "middle")
        for number, line in enumerate(lines, 1):
            self.text(x + width / 2, top + 15 * number, line, "quiet", "middle")

    def save(self):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}">'
        self.path.write_text("\n".join([head, *self.parts, "</svg>"]) + "\n")
        print(self.path.name, self.path.stat().st_size, "bytes")


def shown(token):
    """With spaces and line breaks made visible."""
    return token.replace(" ", "␣").replace("\n", "↵")


def tokens():
    answer = post("/v1/inspect", {"input": SENTENCE, "top_logprobs": 0})
    pieces = [(shown(token["token"]), str(token["id"])) for token in answer["tokens"]]
    widths = [max(7.6 * len(piece), 7.6 * len(number)) + 12 for piece, number in pieces]
    picture = Picture("how-tokens", round(sum(widths) + 4 * (len(widths) - 1) + 32), 104, "A sentence as tokens and their ids")
    picture.text(16, 26, SENTENCE, "ink mono")
    x = 16
    for (piece, number), width in zip(pieces, widths):
        picture.rect("soft", x, 40, width, 24, rx=4)
        picture.text(x + width / 2, 56, piece, "ink mono", "middle")
        picture.text(x + width / 2, 84, number, "quiet mono", "middle")
        x += width + 4
    picture.save()


def model():
    layers, width, vocabulary = CONFIG["num_hidden_layers"], CONFIG["hidden_size"], CONFIG["vocab_size"]
    heads, head, mlp = CONFIG["num_attention_heads"], CONFIG["head_dim"], CONFIG["intermediate_size"]
    picture = Picture("how-model", 720, 560, "The layers of the bundled model")
    middle, left, wide = 250, 140, 220
    picture.text(middle, 26, "token ids", "ink strong", "middle")
    picture.arrow(middle, 34, middle, 54)
    picture.box(left, 56, wide, 42, "Embedding", f"{vocabulary} rows of {width} numbers")
    picture.arrow(middle, 98, middle, 148)
    picture.path_of(f"M40 128H460V404H40Z", "grid")
    picture.text(450, 122, f"a block, {layers} times", "quiet", "end")
    for y, title, line in ((150, "Self-attention", f"{heads} heads of {head} numbers"), (290, "MLP", f"{width} to {mlp} to {width} numbers")):
        picture.box(left, y, wide, 26, "Norm")
        picture.arrow(middle, y + 26, middle, y + 42)
        picture.box(left, y + 44, wide, 42, title, line, kind="soft")
        picture.arrow(middle, y + 86, middle, y + 98)
        picture.text(middle, y + 112, "+", "ink strong", "middle")
        picture.path_of(f"M{middle} {y - 12}H80V{y + 108}H{middle - 10}")
    picture.arrow(middle, 266, middle, 288)
    picture.arrow(middle, 406, middle, 424)
    picture.box(left, 426, wide, 26, "Norm")
    picture.arrow(middle, 452, middle, 466)
    picture.box(left, 468, wide, 42, "Output matrix", f"{width} numbers to {vocabulary} logits")
    picture.arrow(middle, 510, middle, 530)
    picture.text(middle, 546, "probability of each next token", "ink strong", "middle")
    notes = (
        (78, "A row of the table for each token:", f"a vector of {width} numbers."),
        (120, "The residual stream: this vector.", "It goes straight through all blocks."),
        (214, "Reads from the tokens before", "and adds what it found."),
        (354, "Computes with one token's vector", "and adds the result."),
        (490, "The embedding table again,", "used the other way round."),
    )
    for y, *lines in notes:
        for number, line in enumerate(lines):
            picture.text(480, y + 16 * number, line, "quiet")
    picture.save()


def attention():
    chosen = ((2, 2), (3, 3))
    answer = post("/v1/inspect", {"input": STORY, "top_logprobs": 0, "attention": {"layers": [2, 3]}})
    names = [shown(token["token"]) for token in answer["tokens"]]
    n, n_heads = len(names), len(answer["attention"]["heads"])
    weights = struct.unpack(f"<{2 * n_heads * n * n}e", base64.b64decode(answer["attention"]["data"]))
    cell, label = 12, 76
    picture = Picture("how-attention", 2 * (label + cell * n) + 56, label + cell * n + 56, "Attention maps of two heads")
    for number, (layer, head) in enumerate(chosen):
        left, top = 16 + label + number * (label + cell * n + 24), 34 + label
        base = ((layer - 2) * n_heads + head) * n * n
        lamp, her = names.index("␣lamp"), names.index("␣her")
        found = f"“her” reads {100 * weights[base + her * n + lamp]:.0f} % from “lamp”"
        what = ("mostly the token before", found)[number]
        picture.text(left - label, 22, f"Layer {layer}, head {head}: {what}", "ink strong")
        for row in range(n):
            picture.text(left - 5, top + cell * row + 9.5, names[row], "ink mono small", "end")
            picture.text(left + cell * row + 9.5, top - 5, names[row], "ink mono small", turn=-90)
            for column in range(row + 1):
                weight = weights[base + row * n + column]
                if weight >= 0.01:
                    picture.rect("heat", left + cell * column, top + cell * row, cell - 1, cell - 1, weight)
        edge = "".join(f"V{top + cell * (row + 1)}H{left + cell * (row + 2)}" for row in range(n - 1))
        picture.path_of(f"M{left} {top}H{left + cell}{edge}V{top + cell * n}H{left}Z", "grid")
    picture.save()


def logit_lens():
    n_shown = 11
    prompt = STORY[: STORY.rindex(" lamp")]
    answer = post("/v1/inspect", {"input": prompt, "top_logprobs": 0, "logit_lens": {"top": 1}})
    names = [shown(token["token"]) for token in answer["tokens"]][-n_shown:]
    layers, predictions = answer["logit_lens"]["layers"], answer["logit_lens"]["predictions"]
    cell, row_height, left, top = 72, 30, 96, 52
    picture = Picture("how-logit-lens", left + cell * n_shown + 16, top + row_height * len(layers) + 40, "What each layer would predict")
    picture.text(16, 26, "after", "quiet")
    for column, name in enumerate(names):
        picture.text(left + cell * (column + 0.5), 26, name, "ink mono", "middle")
    for row, layer in enumerate(layers):
        y = top + row_height * row
        picture.text(16, y + 8, "embeddings" if layer == 0 else f"block {layer}", "quiet")
        for column, position in enumerate(predictions[layers.index(layer)][-n_shown:]):
            best, x = position[0], left + cell * column
            picture.rect("heat", x + 1, y - 12, cell - 2, row_height - 2, 0.5 * math.exp(best["logprob"]), rx=3)
            picture.text(x + cell / 2, y + 8, shown(best["token"]), "ink mono", "middle")
    y = top + row_height * len(layers) + 10
    picture.text(left, y + 8, "probability", "quiet")
    for step in range(5):
        picture.rect("heat", left + 76 + 52 * step, y - 4, 50, 16, 0.5 * step / 4, rx=3)
        picture.text(left + 101 + 52 * step, y + 8, f"{25 * step} %", "ink", "middle")
    picture.save()


def sampling():
    neutral = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "typical_p": 1, "seed": 1}
    settings = (
        ("the model's own", {}),
        ("temperature 0", {"temperature": 0}),
        ("temperature 0.5", {"temperature": 0.5}),
        ("temperature 1.5", {"temperature": 1.5}),
        ("top_k 4", {"top_k": 4}),
        ("top_p 0.8", {"top_p": 0.8}),
        ("min_p 0.05", {"min_p": 0.05}),
        ("XTC, threshold 0.1", {"xtc_probability": 1, "xtc_threshold": 0.1}),
    )
    names, bar, row_height, wide, tall = None, 88, 15, 214, 196
    picture = Picture("how-sampling", 4 * wide + 24, 2 * tall + 44, "What sampling parameters do to one distribution")
    picture.text(16, 24, f"Next token after “{PROMPT}”", "ink strong")
    for number, (title, changed) in enumerate(settings):
        body = {"prompt": PROMPT, "max_tokens": 1, "logprobs": 20, "logprobs_mode": "processed_logprobs", **neutral, **changed}
        choice = post("/v1/completions", body)["choices"][0]
        found = {token: math.exp(logprob) for token, logprob in choice["logprobs"]["top_logprobs"][0].items()}
        names = names or list(found)[:9]
        left, top = 16 + wide * (number % 4), 54 + tall * (number // 4)
        picture.text(left, top, title, "ink strong")
        rest = max(0.0, 1 - sum(found.get(name, 0) for name in names))
        for row, (name, p) in enumerate([*((name, found.get(name, 0)) for name in names), ("others", rest)]):
            y = top + 8 + row_height * row
            picture.text(left + 58, y + 11, name.strip(), "ink mono small" if row < len(names) else "quiet small", "end")
            picture.path_of(f"M{left + 64} {y}V{y + row_height}", "grid")
            if p >= 0.0005:
                picture.rect("heat", left + 64, y + 2, max(bar * p, 0.7), row_height - 4, 1 if row < len(names) else 0.5)
                percent = f"{100 * p:.0f} %" if p >= 0.095 else f"{100 * p:.1f} %"
                picture.text(left + 68 + bar * p, y + 11, percent, "quiet small")
    picture.save()


def loss():
    answer = post("/v1/inspect", {"input": TALE, "top_logprobs": 0})
    losses = [-token["logprob"] for token in answer["tokens"][1:]]
    names = [shown(token["token"]) for token in answer["tokens"]][1:]
    mean = sum(losses) / len(losses)
    step, left, top, tall = 19, 60, 46, 150
    scale = tall / math.ceil(max(losses))
    picture = Picture("how-loss", left + step * len(names) + 16, top + tall + 84, "The loss of each token of a tale")
    picture.text(16, 24, f"Loss of each token, in nats: mean {mean:.2f}, perplexity {math.exp(mean):.2f}", "ink strong")
    for value in range(0, math.ceil(max(losses)) + 1, 2):
        y = top + tall - scale * value
        picture.path_of(f"M{left} {y:.1f}H{left + step * len(names)}", "grid")
        picture.text(left - 8, y + 4, str(value), "quiet", "end")
    for number, (name, value) in enumerate(zip(names, losses)):
        x = left + step * number
        picture.rect("heat", x + 3, top + tall - scale * value, step - 6, scale * value)
        picture.text(x + step / 2 + 4, top + tall + 10, name, "ink mono small", "end", turn=-60)
    y = top + tall - scale * mean
    picture.path_of(f"M{left} {y:.1f}H{left + step * len(names)}")
    picture.text(left + 4, y - 5, "mean", "quiet")
    picture.save()


def batching(url):
    """Three streams of one server, and when each chunk of theirs came."""
    began = time.perf_counter()
    streams = [("A", 0.0, 64), ("B", 0.15, 40), ("C", 0.3, 24)]
    arrivals = {}

    def follow(name, delay, n_tokens):
        connection = http.client.HTTPConnection(url.hostname, url.port or 80)
        connection.connect()
        body = {"prompt": f"{name} story: once upon a time", "max_tokens": n_tokens, "ignore_eos": True, "stream": True, "seed": 1}
        time.sleep(max(0.0, began + 0.2 + delay - time.perf_counter()))
        sent, times = time.perf_counter(), []
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        while line := response.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
        arrivals[name] = (sent, times)

    threads = [threading.Thread(target=follow, args=stream) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = min(sent for sent, _ in arrivals.values())
    total = 1000 * (max(times[-1] for _, times in arrivals.values()) - first)
    left, wide, row_height = 110, 560, 34
    picture = Picture("how-batching", left + wide + 30, 3 * row_height + 86, "Three requests in one batch")
    picture.text(16, 24, "Three requests to one server: each mark is a piece of an answer that arrived", "ink strong")
    unit = next(size for size in (5, 10, 20, 50, 100, 200, 500, 1000) if total / size <= 10)
    bottom = 46 + 3 * row_height
    for tick in range(int(total // unit) + 1):
        x = left + wide * tick * unit / total
        picture.path_of(f"M{x:.1f} 40V{bottom}", "grid")
        picture.text(x, bottom + 16, f"{tick * unit} ms", "quiet small", "middle")
    for row, (name, _, n_tokens) in enumerate(streams):
        sent, times = arrivals[name]
        y = 46 + row_height * row
        picture.text(16, y + 19, f"{name}, {n_tokens} tokens", "ink")
        at = [left + wide * 1000 * (moment - first) / total for moment in (sent, *times)]
        picture.rect("heat", at[0], y + 12, at[-1] - at[0], 4, 0.3)
        for x in at[1:]:
            picture.rect("heat", x - 0.6, y + 4, 1.2, 20)
        picture.text(at[0], y + 2, "sent", "quiet small", "middle")
    picture.save()


if __name__ == "__main__":
    for draw in (tokens, model, attention, logit_lens, sampling, loss):
        draw()
    if len(sys.argv) == 3:
        batching(urllib.parse.urlsplit(sys.argv[2]))
