// Output of models is text. These functions make it harmless to show.

// Controls that change the direction of the text after them, and invisible control characters, as visible marks. Tabs and line ends
// stay.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

export function visible(text: string): string {
  return text.replace(HIDDEN, (c) => {
    if (c === "\r") return "";
    return `⟨${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

// A token for a label: white space becomes visible.
export function tokenLabel(text: string): string {
  if (text === "") return "∅";
  return visible(text).replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}

// Joins tokens that are parts of characters: the last of them shows the character, the others nothing.
export class Characters {
  private readonly decoder = new TextDecoder();
  private open = false;

  // `bytes`: of a token that is no text alone.
  next(text: string, bytes?: number[]): string {
    if (bytes) {
      this.open = true;
      return this.decoder.decode(new Uint8Array(bytes), {stream: true});
    }
    const cut = this.open ? this.decoder.decode() : ""; // an incomplete character
    this.open = false;
    return cut + text;
  }
}

// "bytes:\\xc3\\xa9" -> [0xc3, 0xa9]: how completions write tokens that are no text.
export function bytesOf(token: string): number[] | undefined {
  if (!/^bytes:(\\x[0-9a-f]{2})+$/.test(token)) return undefined;
  return [...token.matchAll(/\\x(..)/g)].map((found) => parseInt(found[1]!, 16));
}
