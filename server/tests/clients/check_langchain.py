"""`langchain-openai`, unmodified, against a running server. Run as check_openai.py."""

import os

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

URL = f"{os.environ['HEARTH_URL']}/v1"
KEY = os.environ.get("HEARTH_KEY", "none")


def main():
    name = ChatOpenAI(base_url=URL, api_key=KEY, model="x").root_client.models.list().data[0].id
    shared = dict(base_url=URL, api_key=KEY, model=name, seed=5, max_retries=0)
    chat = ChatOpenAI(**shared, max_tokens=12, temperature=0, stream_usage=True)
    messages = [SystemMessage("Be brief."), HumanMessage("Hello?"), AIMessage("Yes."), HumanMessage("Name a colour.")]
    answer = chat.invoke(messages)
    assert answer.content and answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    chunks = list(chat.stream(messages))
    assert "".join(chunk.content for chunk in chunks) == answer.content
    totals = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert len(totals) == 1 and totals[0]["total_tokens"] == answer.usage_metadata["total_tokens"]
    told = chat.bind(logprobs=True, top_logprobs=2).invoke(messages).response_metadata["logprobs"]["content"]
    assert len(told) == answer.usage_metadata["output_tokens"]

    completion = OpenAI(**shared, max_tokens=8, temperature=0, n=1)
    texts = completion.generate(["Once upon", "The sky"]).generations
    assert len(texts) == 2 and texts[0][0].text
    assert "".join(completion.stream("Once upon")) == texts[0][0].text
    print("ok langchain")


if __name__ == "__main__":
    main()
