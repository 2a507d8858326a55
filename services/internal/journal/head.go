package journal

import (
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// headName is the file in the journal's folder that has the newest head.
const headName = "head.json"

// Head says how far both chains went when it was sealed. A copy that is kept elsewhere
// shows later whether records were cut off, or whether an older copy of the journal
// was put in its place. The zero value is no head: [Head.Check] refuses it.
type Head struct {
	// Time is when it was sealed, in UTC.
	Time time.Time `json:"time"`
	// Calls is where the chain of calls ended.
	Calls ChainHead `json:"calls"`
	// Refusals is where the chain of refusals ended.
	Refusals ChainHead `json:"refusals"`
	// Key is the public half of the key that it is signed with, Ed25519, in hex.
	Key string `json:"key"`
	// Signature is over the rest, in hex.
	Signature string `json:"signature"`
}

// ChainHead is where a chain ends.
type ChainHead struct {
	// Count is how many records it had ever, which is the seq of the newest.
	Count int64 `json:"count"`
	// Hash is the SHA-256 of the newest record's line, in hex; 64 zeros where there is
	// none.
	Hash string `json:"hash"`
}

// errNotSealed says that a head is not what the key sealed that it names.
var errNotSealed = errors.New("its signature is not that of the key that it names")

// text is what is signed.
func (h *Head) text() []byte {
	return fmt.Appendf(nil, "sluice journal head v1\n%s\ncalls %d %s\nrefusals %d %s\n",
		h.Time.UTC().Format(time.RFC3339Nano), h.Calls.Count, h.Calls.Hash, h.Refusals.Count, h.Refusals.Hash)
}

// seal signs the head.
func (h *Head) seal(key ed25519.PrivateKey) {
	h.Key = hex.EncodeToString(key.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // by its contract
	h.Signature = hex.EncodeToString(ed25519.Sign(key, h.text()))
}

// Check reports whether the head is what the key sealed that it names; whose key that is
// it can't tell.
func (h *Head) Check() error {
	key, err := hex.DecodeString(h.Key)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return errors.New("it names no key")
	}
	signature, err := hex.DecodeString(h.Signature)
	if err != nil || !ed25519.Verify(key, h.text(), signature) {
		return errNotSealed
	}
	return nil
}

// String is the head as one line of JSON, as files have it.
func (h *Head) String() string {
	line, err := json.Marshal(h)
	if err != nil {
		return "no head: " + err.Error()
	}
	return string(line)
}

// of is where the head says that a chain ended.
func (h *Head) of(chain string) ChainHead {
	if chain == callsName {
		return h.Calls
	}
	return h.Refusals
}

// ReadHeads reads the heads of a file: one or more, as head.json, the log and `sluice
// status` have them, with or without other lines or words around. None is an error.
func ReadHeads(path string) ([]Head, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read head: %w", err)
	}
	var heads []Head
	for rest := strings.ReplaceAll(string(text), `\"`, `"`); ; { // as logs of JSON have them
		at := strings.Index(rest, "{")
		if at < 0 {
			break
		}
		rest = rest[at:]
		var h Head
		d := jsontext.NewDecoder(strings.NewReader(rest))
		if err := json.UnmarshalDecode(d, &h); err != nil || h.Signature == "" {
			rest = rest[1:]
			continue
		}
		heads, rest = append(heads, h), rest[d.InputOffset():]
	}
	if len(heads) == 0 {
		return nil, fmt.Errorf("read head: %s holds no head", path)
	}
	return heads, nil
}

// readHead reads the newest head of a folder; nil where there is none.
func readHead(dir string) (*Head, error) {
	text, err := os.ReadFile(filepath.Join(dir, headName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read head: %w", err)
	}
	h := new(Head)
	if err := json.Unmarshal(text, h); err != nil {
		return nil, fmt.Errorf("read %s: %w", headName, err)
	}
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("read %s: %w", headName, err)
	}
	return h, nil
}

// HeadToProto packs a head; nil for none.
func HeadToProto(h *Head) *gatewayv1.JournalHead {
	if h == nil {
		return nil
	}
	return &gatewayv1.JournalHead{
		Time:     stamp(h.Time),
		Calls:    &gatewayv1.ChainHead{Count: h.Calls.Count, Hash: h.Calls.Hash},
		Refusals: &gatewayv1.ChainHead{Count: h.Refusals.Count, Hash: h.Refusals.Hash},
		Key:      h.Key, Signature: h.Signature,
	}
}

// HeadFromProto unpacks a head; nil for none.
func HeadFromProto(h *gatewayv1.JournalHead) *Head {
	if h == nil {
		return nil
	}
	return &Head{
		Time:     moment(h.GetTime()),
		Calls:    ChainHead{Count: h.GetCalls().GetCount(), Hash: h.GetCalls().GetHash()},
		Refusals: ChainHead{Count: h.GetRefusals().GetCount(), Hash: h.GetRefusals().GetHash()},
		Key:      h.GetKey(), Signature: h.GetSignature(),
	}
}
