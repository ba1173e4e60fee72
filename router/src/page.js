// What the pages of this server share: what is typed survives a reload, and a server that does not answer has a name.
"use strict";

const element = (id) => document.getElementById(id);

/** Keeps what is typed into fields for as long as the storage does: `localStorage` for good, `sessionStorage` until the tab is closed. */
function keep(storage, fields) {
  for (const [name, field] of Object.entries(fields)) {
    const isCheck = field.type === "checkbox" || field.type === "radio";
    try {
      const kept = storage.getItem(`hilo.${name}`);
      if (kept !== null) isCheck ? (field.checked = kept === "true") : (field.value = kept);
    } catch {
      // A browser that keeps nothing for anybody.
      return;
    }
    field.addEventListener("change", () => storage.setItem(`hilo.${name}`, isCheck ? field.checked : field.value));
  }
}

/** Asks this server. Fails with a sentence where there is no answer. */
async function ask(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server cannot be reached. Is it running?");
  }
}

/** The pieces of an answer's text as they come. Fails with a sentence where the connection breaks. */
async function* pieces(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error("The connection to the server broke off.");
    }
    if (piece.done) return;
    yield piece.value;
  }
}
