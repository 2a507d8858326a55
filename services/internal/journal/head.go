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

// headName is the name of the file in the journal's directory that contains the newest head.
const headName = "head.json"

// Head contains the ends of both chains at one point in time, signed with the journal's key. If a copy of a head is
// stored elsewhere, it can later show that records were removed from the end, or that the journal was replaced with an
// older copy. The zero value is not a valid head, so [Head.Check] refuses it.
type Head struct {
	// Time is the time at which the head was signed, in UTC.
	Time time.Time `json:"time"`
	// Calls is the end of the chain of calls.
	Calls ChainHead `json:"calls"`
	// Refusals is the end of the chain of refusals.
	Refusals ChainHead `json:"refusals"`
	// Key is the Ed25519 public key for the signature, in hex.
	Key string `json:"key"`
	// Signature is the signature of all other fields except Key, in hex.
	Signature string `json:"signature"`
}

// ChainHead is the end of a chain.
type ChainHead struct {
	// Count is the number of records that were ever written to the chain. It is the sequence number of the newest record.
	Count int64 `json:"count"`
	// Hash is the SHA-256 digest of the newest record's line, in hex. It consists of 64 zeros if no record was ever
	// written to the chain.
	Hash string `json:"hash"`
}

var errNotSealed = errors.New("the signature does not match the key that the head names")

// signingInput returns the bytes that are signed.
func (h *Head) signingInput() []byte {
	return fmt.Appendf(nil, "sluice journal head v1\n%s\ncalls %d %s\nrefusals %d %s\n",
		h.Time.UTC().Format(time.RFC3339Nano), h.Calls.Count, h.Calls.Hash, h.Refusals.Count, h.Refusals.Hash)
}

func (h *Head) seal(key ed25519.PrivateKey) {
	h.Key = hex.EncodeToString(key.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // an ed25519.PrivateKey returns this type
	h.Signature = hex.EncodeToString(ed25519.Sign(key, h.signingInput()))
}

// Check returns an error unless the signature matches the key that the head contains. Check does not verify that this
// key is the journal's key.
func (h *Head) Check() error {
	key, err := hex.DecodeString(h.Key)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return errors.New("the head names no Ed25519 key")
	}
	signature, err := hex.DecodeString(h.Signature)
	if err != nil || !ed25519.Verify(key, h.signingInput(), signature) {
		return errNotSealed
	}
	return nil
}

// String returns the head as one line of JSON, in the format that is used in files.
func (h *Head) String() string {
	line, err := json.Marshal(h)
	if err != nil {
		return "no head: " + err.Error()
	}
	return string(line)
}

func (h *Head) chainEnd(chain string) ChainHead {
	if chain == callsName {
		return h.Calls
	}
	return h.Refusals
}

// ReadHeads reads all heads in a file. The file may be head.json, a log, or output of `sluice status`. Other content in
// the file is ignored. If there is no head, ReadHeads returns an error.
func ReadHeads(path string) ([]Head, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read head: %w", err)
	}
	var heads []Head
	for rest := strings.ReplaceAll(string(text), `\"`, `"`); ; { // in JSON logs, quotes are escaped
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
		return nil, fmt.Errorf("read head: %s contains no head", path)
	}
	return heads, nil
}

// readHead reads the newest head in a directory. It returns nil if there is none.
func readHead(dir string) (*Head, error) {
	text, err := os.ReadFile(filepath.Join(dir, headName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // the directory has no head
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

// HeadToProto converts a head to its protobuf message. It returns nil for nil.
func HeadToProto(h *Head) *gatewayv1.JournalHead {
	if h == nil {
		return nil
	}
	return &gatewayv1.JournalHead{
		Time:     timestampOf(h.Time),
		Calls:    &gatewayv1.ChainHead{Count: h.Calls.Count, Hash: h.Calls.Hash},
		Refusals: &gatewayv1.ChainHead{Count: h.Refusals.Count, Hash: h.Refusals.Hash},
		Key:      h.Key, Signature: h.Signature,
	}
}

// HeadFromProto converts a protobuf message to a head. It returns nil for nil.
func HeadFromProto(h *gatewayv1.JournalHead) *Head {
	if h == nil {
		return nil
	}
	return &Head{
		Time:     timeOf(h.GetTime()),
		Calls:    ChainHead{Count: h.GetCalls().GetCount(), Hash: h.GetCalls().GetHash()},
		Refusals: ChainHead{Count: h.GetRefusals().GetCount(), Hash: h.GetRefusals().GetHash()},
		Key:      h.GetKey(), Signature: h.GetSignature(),
	}
}
