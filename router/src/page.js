// Code that the pages of this server share: it keeps typed values over a reload, and turns an unreachable server into a
// clear error.
"use strict";

const element = (id) => document.getElementById(id);

/** Keeps the values of fields in a storage: `localStorage` for good, `sessionStorage` until the tab is closed. */
function keep(storage, fields) {
  for (const [name, field] of Object.entries(fields)) {
    const isCheck = field.type === "checkbox" || field.type === "radio";
    try {
      const kept = storage.getItem(`hilo.${name}`);
      if (kept !== null) isCheck ? (field.checked = kept === "true") : (field.value = kept);
    } catch {
      // The browser forbids storage.
      return;
    }
    field.addEventListener("change", () => storage.setItem(`hilo.${name}`, isCheck ? field.checked : field.value));
  }
}

/** Sends a request to this server. If no response comes, the error is a sentence for the user. */
async function ask(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server cannot be reached. Is it running?");
  }
}

/** The pieces of a response's text as they arrive. If the connection breaks, the error is a sentence for the user. */
async function* pieces(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error("The connection to the server was lost.");
    }
    if (piece.done) return;
    yield piece.value;
  }
}
