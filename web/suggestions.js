// First messages that suit the served model.
import { modelId, modelList } from "./models.js";

/** The bundled model knows short tales and nothing else. */
const BUNDLED = "hearth-bundled";
const TALES = ["Tell me a story about a brave fox who lost her lamp.", "What can you do?", "Tell me a story that ends well."];
const QUESTIONS = ["Explain why the sky is blue, in three sentences.", "Write a polite e-mail that moves a meeting to Friday.", "Name three cities in Norway and what each is known for."];

/** Suggestions for the chosen model. */
export function suggestions() {
  const isBundled = modelList().some(({ id, parent }) => id === modelId() && [id, parent].includes(BUNDLED));
  return isBundled ? TALES : QUESTIONS;
}
