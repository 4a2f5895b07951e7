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
