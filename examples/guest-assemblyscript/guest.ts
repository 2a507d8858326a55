// A guest in AssemblyScript: an agent that counts the words of what it is told and writes the
// count into a file of its own.
//
// A guest is given envelopes, JSON objects, and returns one for each: what it wants done, or
// how its turn ended (sdk/abi/abi-1.schema.json). Between two of them it is its memory alone.

let place: usize = 0; // where envelopes are put
let room: i32 = 0;
let answer: ArrayBuffer = new ArrayBuffer(0); // kept until the next step
let sequence: i64 = 0;
let words: i32 = 0;

export function abi_version(): i32 {
  return 1;
}

// alloc returns a place for an envelope of so many bytes.
export function alloc(bytes: i32): i32 {
  if (bytes > room) {
    if (place != 0) heap.free(place);
    place = heap.alloc(bytes);
    room = bytes;
  }
  return i32(place);
}

// step takes an envelope and returns where the next one is: place << 32 | bytes.
export function step(at: i32, bytes: i32): i64 {
  const envelope = String.UTF8.decodeUnsafe(usize(at), usize(bytes));
  switch (kindOf(envelope)) {
    case 1: // a prompt: have the count written down
      words = count(input(envelope));
      return say('"kind":"fs","op":"write_file","path":"words.txt","content":"' + words.toString() + '"');
    case 2: // that was done, or was not
      if (envelope.includes('"error":{')) return say('"kind":"fail","text":"the count could not be written down"');
      return say('"kind":"finish","text":"' + words.toString() + ' words"');
    default: // start, or nobody waits any more
      return say('"kind":"finish"');
  }
}

function kindOf(envelope: string): i32 {
  if (envelope.startsWith('{"kind":"prompt"')) return 1;
  if (envelope.startsWith('{"kind":"effect_result"')) return 2;
  return 0;
}

// input is the text of a prompt as JSON writes it: up to the quote that no backslash escapes.
function input(envelope: string): string {
  const begin = envelope.indexOf('"input":"') + 9;
  if (begin < 9) return '';
  let end = begin;
  while (end < envelope.length && envelope.charCodeAt(end) != 34) {
    end += envelope.charCodeAt(end) == 92 ? 2 : 1;
  }
  return envelope.substring(begin, end);
}

function count(text: string): i32 {
  const parts = text.replaceAll('\\n', ' ').replaceAll('\\t', ' ').split(' ');
  let n = 0;
  for (let i = 0; i < parts.length; i++) {
    if (parts[i].length > 0) n++;
  }
  return n;
}

function say(fields: string): i64 {
  sequence++;
  answer = String.UTF8.encode('{' + fields + ',"sequence":' + sequence.toString() + '}');
  return (i64(changetype<usize>(answer)) << 32) | i64(answer.byteLength);
}
