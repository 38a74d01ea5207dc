// The served models, and the one that is chosen.
import { listModels, tokenizerInfo } from "./api.js";
import { byId, element } from "./dom.js";
import { keep, setting } from "./settings.js";

let list = [];
let chosen;
/** Whether the model has a chat template; undefined until known. */
let chats;

/** Fires `change` when models were loaded or another one was chosen. */
export const models = new EventTarget();
const changed = () => models.dispatchEvent(new Event("change"));

export const modelList = () => list;
/** The chosen model's name; undefined, and not sent, until the server has reported it. */
export const modelId = () => chosen;
const modelInfo = (id = chosen) => list.find((model) => model.id === id);
/** The context length in tokens, if known. */
export const contextLength = (id) => modelInfo(id)?.max_model_len ?? modelInfo(id)?.meta?.n_ctx_train;
/** Whether the model reads a source and writes a text about it. */
export const isEncoderDecoder = () => modelInfo()?.meta?.kind === "encoder-decoder";
/** Whether the model can chat: false only if the server says that it has no chat template. */
export const canChat = () => chats !== false;

/** An adapter is shown with the model that it belongs to. */
const title = (model) => (model.parent ? `${model.id} (adapter of ${model.parent})` : model.id);

function show() {
  const select = byId("model-select");
  select.replaceChildren(...list.map((model) => element("option", { value: model.id }, title(model))));
  if (chosen !== undefined) select.value = chosen;
  select.hidden = list.length < 2;
  byId("model").hidden = list.length > 1;
  byId("model").textContent = chosen ?? "unknown";
}

let loading = null;

/** Asks the server which models it has. */
export function loadModels() {
  loading ??= load().finally(() => { loading = null; });
  return loading;
}

async function load() {
  try {
    list = await listModels();
    const last = setting("model");
    chosen = (list.find((model) => model.id === last) ?? list[0])?.id;
    // Other servers do not have this endpoint: then trying is the only way to know.
    const info = await tokenizerInfo().catch(() => undefined);
    chats = info && "chat_template" in info ? info.chat_template !== null : undefined;
  } finally {
    show();
    changed();
  }
}

export function start() {
  byId("model-select").addEventListener("change", (event) => {
    chosen = event.target.value;
    keep("model", chosen);
    changed();
  });
}
