// Server-sent events.

/** Yields the data of each event of a stream of bytes. Chunks may end anywhere: within a character, a line end or an event. */
export async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    // A "\r" at the end of a chunk may be half of "\r\n", so its line is split off with the next chunk. At the end of the
    // stream, `value` is the default "\n", which completes the last line.
    const { value = "\n", done } = await reader.read();
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      } else if (line === "" && data.length > 0) {
        yield data.join("\n");
        data = [];
      }
    }
    if (done) return;
  }
}
