// Package inventory lists the digests of an agent's stored parts. Whenever an agent is stored, its journal records how
// the list has changed. The journal's hash chain therefore covers every stored part, and a check can find out which
// part another process has changed. Package agent uses the package.
package inventory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
)

// maxValue limits the length, in bytes, of a record field's JSON that the list contains in full. For longer JSON, the
// list contains the digest instead.
const maxValue = 96

// ErrRecord means that a record or a state can't be listed, because this program would never store such content.
// Compare it with errors.Is.
var ErrRecord = errors.New("its content is not valid")

// Inventory is a list of the stored parts of an agent. The zero value is the empty list.
type Inventory struct {
	// files maps paths to entries. guest and record map field names to entries.
	files, guest, record map[string]entry
	todos, messages      []entry
	// digest is the SHA-256 of the record's JSON, in hexadecimal digits. It is empty if the list was computed from a
	// journal.
	digest string
}

// An entry describes a stored value. The entry of a number, or of a record field with short JSON, contains the value
// itself. All other entries contain the value's digest.
type entry struct {
	value string
	// found is true if the value was stored before the journal began to list values, so that the journal does not
	// record how the value was created.
	found bool
}

// New returns the list of the parts in a record and a state. The list omits the head of the journal, and the key, the
// digest and the size of the state. New returns [ErrRecord] if a part can't be listed.
func New(r *wasmstorev1.Record, s *wasmstorev1.State) (*Inventory, error) {
	out := &Inventory{files: make(map[string]entry, len(s.GetFiles()))}
	for _, f := range s.GetFiles() {
		sum := sha256.Sum256([]byte(f.GetContent()))
		out.files[f.GetPath()] = entry{value: hex.EncodeToString(sum[:]) + " " + f.GetModifiedAt().AsTime().Format(time.RFC3339Nano)}
	}
	if len(out.files) != len(s.GetFiles()) {
		return nil, fmt.Errorf("%w: two files have the same path", ErrRecord)
	}
	for _, t := range s.GetTodos() {
		out.todos = append(out.todos, textEntry(strconv.Itoa(int(t.GetStatus())), t.GetContent()))
	}
	for _, m := range s.GetMessages() {
		out.messages = append(out.messages, textEntry(strconv.Itoa(int(m.GetRole())), m.GetContent()))
	}
	memory := sha256.Sum256(s.GetMemory())
	out.guest = map[string]entry{
		"memory": {value: hex.EncodeToString(memory[:])}, "sequence": {value: strconv.FormatInt(s.GetSequence(), 10)}, "turns": {value: strconv.Itoa(int(s.GetTurns()))},
	}
	return out, out.listRecord(r)
}

func textEntry(kind, text string) entry {
	sum := canonicaljson.Sum(kind, text)
	return entry{value: hex.EncodeToString(sum[:])}
}

// listRecord adds the fields of a record to the list, under their protobuf names. Each entry contains the field's
// canonical JSON (RFC 8785) or the digest of that JSON.
func (i *Inventory) listRecord(r *wasmstorev1.Record) error {
	r = proto.CloneOf(r)
	r.Head, r.StateDigest, r.StateBytes, r.StateKey = nil, "", 0, ""
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	value := jsontext.Value(text)
	if err := value.Canonicalize(); err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	sum := sha256.Sum256(value)
	i.digest = hex.EncodeToString(sum[:])
	var fields map[string]jsontext.Value
	if err := json.Unmarshal(value, &fields); err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if snapshots, ok := fields["kept"]; ok { // the documentation uses the name "snapshots"
		delete(fields, "kept")
		fields["snapshots"] = snapshots
	}
	i.record = make(map[string]entry, len(fields))
	for name, field := range fields {
		if text := bytes.TrimSpace(field); len(text) <= maxValue {
			i.record[name] = entry{value: string(text)}
			continue
		}
		sum := sha256.Sum256(field)
		i.record[name] = entry{value: "SHA-256 " + hex.EncodeToString(sum[:])}
	}
	return nil
}

// Size returns how much memory the list needs, in bytes. The result is an approximation. The size of a nil list is 0.
func (i *Inventory) Size() int {
	if i == nil {
		return 0
	}
	const each = 120
	n := each * (len(i.todos) + len(i.messages) + len(i.guest) + len(i.record))
	for path := range i.files {
		n += each + len(path)
	}
	return n
}

func difference(part, name, format string, args ...any) *wasmagentv1.StoredDifference {
	return &wasmagentv1.StoredDifference{Part: part, Name: name, Message: fmt.Sprintf(format, args...)}
}
