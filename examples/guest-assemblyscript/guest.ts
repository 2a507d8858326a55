// A guest in AssemblyScript: an agent that counts the words of its prompt and writes the count
// to one of its files.
//
// A guest receives envelopes, which are JSON objects. It returns one envelope for each: the effect
// that it requests, or the end of its turn (sdk/abi/abi-1.schema.json). Between two envelopes its
// only state is its memory.

let place: usize = 0; // address of the buffer for envelopes
let room: i32 = 0; // size of that buffer in bytes
let answer: ArrayBuffer = new ArrayBuffer(0); // must stay valid until the next step
let sequence: i64 = 0;
let words: i32 = 0;

export function abi_version(): i32 {
  return 1;
}

// alloc returns the address of a buffer for an envelope of the given size.
export function alloc(bytes: i32): i32 {
  if (bytes > room) {
    if (place != 0) heap.free(place);
    place = heap.alloc(bytes);
    room = bytes;
  }
  return i32(place);
}

// step handles an envelope and returns the response envelope as address << 32 | size in bytes.
export function step(at: i32, bytes: i32): i64 {
  const envelope = String.UTF8.decodeUnsafe(usize(at), usize(bytes));
  switch (kindOf(envelope)) {
    case 1: // a prompt: request to write the count
      words = count(input(envelope));
      return say('"kind":"fs","op":"write_file","path":"words.txt","content":"' + words.toString() + '"');
    case 2: // the file was written, or writing failed
      if (envelope.includes('"error":{')) return say('"kind":"fail","text":"the count could not be written down"');
      return say('"kind":"finish","text":"' + words.toString() + ' words"');
    default: // the start, or the cancellation of a prompt
      return say('"kind":"finish"');
  }
}

function kindOf(envelope: string): i32 {
  if (envelope.startsWith('{"kind":"prompt"')) return 1;
  if (envelope.startsWith('{"kind":"effect_result"')) return 2;
  return 0;
}

// input returns the JSON-escaped text of a prompt, up to the first unescaped quote.
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
