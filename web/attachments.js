// Text files that go with the next message: chosen, dropped or pasted. Their text becomes code blocks of the message.
import { fenced } from "./conversation.js";
import { byId, element, icon } from "./dom.js";
import { languageOfFile } from "./highlight.js";
import { notice } from "./notice.js";

const MAX_BYTES = 1 << 20;

/** The text of a file, or an error for people. */
async function textOf(file) {
  if (file.size > MAX_BYTES) throw new Error(`“${file.name}” is too large: at most 1 MiB can be attached, and it has ${(file.size / MAX_BYTES).toFixed(1)} MiB.`);
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error(`“${file.name}” cannot be read. Folders cannot be attached.`);
  }
  const encoding = { fffe: "utf-16le", feff: "utf-16be" }[[...bytes.subarray(0, 2)].map((byte) => byte.toString(16).padStart(2, "0")).join("")] ?? "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    if (text.includes("\0")) throw new Error("binary");
    return text.replaceAll("\r\n", "\n");
  } catch {
    throw new Error(`“${file.name}” is not a text file. Only text can be attached.`);
  }
}

export class Attachments {
  #files = [];
  #list = byId("attached");
  #changed;

  /** `changed()` is called when files were added or removed. */
  constructor(changed) {
    this.#changed = changed;
    const chooser = byId("attach-file");
    byId("attach").append(icon("attach"));
    byId("attach").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", async () => {
      await this.add([...chooser.files]);
      chooser.value = "";
      byId("message").focus();
    });
    byId("message").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      // Office programs copy a picture beside the text: then the text is meant.
      if (files.length === 0 || event.clipboardData.getData("text/plain") !== "") return;
      event.preventDefault();
      this.add(files);
    });
    this.#acceptDrops(byId("chat").querySelector(".chat-main"));
  }

  #acceptDrops(target) {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    // Entering an element within comes before leaving the one around it.
    let depth = 0;
    const mark = (by) => {
      depth = Math.max(0, depth + by);
      target.classList.toggle("is-drop-target", depth > 0);
    };
    target.addEventListener("dragenter", (event) => hasFiles(event) && mark(1));
    target.addEventListener("dragleave", (event) => hasFiles(event) && mark(-1));
    // A file that is dropped elsewhere must not replace the page.
    for (const type of ["dragover", "drop"]) window.addEventListener(type, (event) => hasFiles(event) && event.preventDefault());
    target.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      mark(-depth);
      this.add([...event.dataTransfer.files]);
    });
  }

  async add(files) {
    const problems = [];
    for (const file of files) {
      try {
        this.#files.push({ name: file.name.replace(/[`\n\r]/g, "'"), text: await textOf(file) });
      } catch (error) {
        problems.push(error.message);
      }
    }
    if (problems.length > 0) notice(problems.join("\n"));
    this.#show();
  }

  #show() {
    this.#list.hidden = this.#files.length === 0;
    this.#list.replaceChildren(...this.#files.map((file) => element("li", { class: "attachment" }, element("span", {}, file.name),
      element("button", { type: "button", class: "icon-button", "aria-label": `Remove “${file.name}”`, title: "Remove", onclick: () => this.#remove(file) }, icon("close")))));
    this.#changed();
  }

  #remove(file) {
    this.#files.splice(this.#files.indexOf(file), 1);
    this.#show();
    byId("message").focus();
  }

  get isEmpty() {
    return this.#files.length === 0;
  }

  /** The message with the attached files below it. */
  with(text) {
    const blocks = this.#files.map((file) => `File \`${file.name}\`:\n\n${fenced(file.text, languageOfFile(file.name))}`);
    return [text, ...blocks].filter((part) => part.trim() !== "").join("\n\n");
  }

  clear() {
    if (this.isEmpty) return;
    this.#files = [];
    this.#show();
  }
}
