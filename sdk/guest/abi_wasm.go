package guest

import (
	"encoding/json"
	"errors"
	"unsafe"
)

// abiVersion is the version of the ABI, which consists of the JSON envelopes and of the functions that this package
// exports.
const abiVersion = 1

// The host writes an envelope to incoming, and reads an envelope from outgoing. These package variables keep the two
// buffers reachable, so that the garbage collector does not free them.
var incoming, outgoing []byte

//go:wasmexport abi_version
func exportVersion() uint32 { return abiVersion }

//go:wasmexport alloc
func exportAlloc(bytes uint32) unsafe.Pointer {
	incoming = make([]byte, max(bytes, 1))
	return unsafe.Pointer(&incoming[0])
}

//go:wasmexport step
func exportStep(_ unsafe.Pointer, bytes uint32) uint64 {
	outgoing = step(incoming[:bytes])
	return uint64(uintptr(unsafe.Pointer(&outgoing[0])))<<32 | uint64(len(outgoing))
}

// step handles one JSON envelope and returns the response, which is a JSON envelope too.
func step(text []byte) []byte {
	var e hostEnvelope
	if err := json.Unmarshal(text, &e); err != nil {
		return encoded(agent.numbered(guestEnvelope{Kind: "fail", Text: "read the envelope: " + err.Error()}))
	}
	agent.fromHost <- e
	return encoded(<-agent.toHost)
}

func encoded(e guestEnvelope) []byte {
	text, err := json.Marshal(e)
	if err == nil && len(text) > maxEnvelope {
		err = errors.New("it has more than 1 MiB")
	}
	if err != nil {
		text, _ = json.Marshal(guestEnvelope{Kind: "fail", Sequence: e.Sequence, Text: "write the envelope: " + err.Error()})
	}
	return text
}
