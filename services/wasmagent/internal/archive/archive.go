// Package archive encodes and decodes archives of agents. An archive is a signed tar file that contains everything that
// another installation needs to run the agent (see sluice/wasmagent/v1/archive.proto). Two archives of the same agent
// state have the same bytes.
package archive

import (
	"archive/tar"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
)

// MaxBytes limits the size of an archive, in bytes.
const MaxBytes = 64 << 20

const formVersion = 1

const (
	agentName    = "agent.json"
	filesName    = "files/"
	journalName  = "journal.jsonl"
	memoryName   = "memory"
	messagesName = "messages.jsonl"
	moduleName   = "module.wasm"
	todosName    = "todos.json"
	sumsName     = "SHA256SUMS"
	sigName      = "SHA256SUMS.sig"
)

// [Encode] and [Decode] return these errors. Compare them with [errors.Is].
var (
	// ErrInvalid means that the bytes are not an archive, or that the archive was modified. The error that wraps it
	// contains the details.
	ErrInvalid = errors.New("the archive is invalid")
	// ErrSignature means that none of the accepted keys has signed the archive.
	ErrSignature = errors.New("no accepted key has signed the archive")
	// ErrLarge means that the archive is larger than [MaxBytes].
	ErrLarge = fmt.Errorf("the archive has more than %d MiB", MaxBytes>>20)
)

// Content is the decoded content of an archive.
type Content struct {
	Agent  *wasmagentv1.ArchivedAgent
	State  *wasmstorev1.State
	Events []*wasmstorev1.StoredEvent
	// Module is the module of the guest, or nil if the program contains the guest.
	Module []byte
}

// Encode encodes and signs an archive, and also returns the signature. It returns [ErrLarge] if the archive is too
// large.
func Encode(c Content, key ed25519.PrivateKey) (text, signature []byte, err error) {
	parts, err := c.parts()
	if err != nil {
		return nil, nil, err
	}
	sums := sumsOf(parts)
	signature = ed25519.Sign(key, sums)
	text, err = pack(parts, sums, signature)
	return text, signature, err
}

// Decode decodes an archive that was signed with one of the given keys. It checks the signature before it decodes the
// parts. It returns [ErrInvalid] or [ErrSignature].
func Decode(text []byte, keys []ed25519.PublicKey) (c Content, err error) {
	parts, err := unpack(text)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	sums, signature := parts[sumsName], parts[sigName]
	delete(parts, sumsName)
	delete(parts, sigName)
	if !bytes.Equal(sums, sumsOf(parts)) {
		return c, fmt.Errorf("%w: a sum in %s is wrong", ErrInvalid, sumsName)
	}
	if !slices.ContainsFunc(keys, func(key ed25519.PublicKey) bool { return ed25519.Verify(key, sums, signature) }) {
		return c, ErrSignature
	}
	if c, err = contentOf(parts); err != nil {
		return c, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	// Encoding the content again must produce the same bytes. This makes sure that the archive has no bytes between the
	// parts, and that all programs decode the archive in the same way.
	reencoded, err := c.parts()
	if err != nil {
		return c, err
	}
	if same, err := pack(reencoded, sums, signature); err != nil || !bytes.Equal(same, text) {
		return c, fmt.Errorf("%w: its encoding is not canonical", ErrInvalid)
	}
	return c, nil
}

// parts returns the parts of an archive by name. They do not include the checksums and the signature.
func (c Content) parts() (map[string][]byte, error) {
	c.Agent = proto.CloneOf(c.Agent)
	c.Agent.FormatVersion = formVersion
	parts := make(map[string][]byte)
	var err error
	if parts[agentName], err = canonicalJSON(c.Agent); err != nil {
		return nil, err
	}
	if parts[todosName], err = canonicalJSON(&wasmagentv1.ListTodosResponse{AgentId: c.Agent.GetAgent().GetId(), Todos: c.State.GetTodos()}); err != nil {
		return nil, err
	}
	var messages, journal bytes.Buffer
	for _, m := range c.State.GetMessages() {
		text, err := canonicalJSON(m)
		if err != nil {
			return nil, err
		}
		messages.Write(append(text, '\n'))
	}
	for _, e := range c.Events {
		whole := proto.CloneOf(e.GetEvent())
		whole.EnvelopeJson = string(e.GetEnvelope())
		text, err := canonicalJSON(whole)
		if err != nil {
			return nil, err
		}
		if journal.Write(append(text, '\n')); journal.Len() > MaxBytes {
			return nil, ErrLarge
		}
	}
	parts[messagesName], parts[journalName] = messages.Bytes(), journal.Bytes()
	if len(c.State.GetMemory()) > 0 {
		parts[memoryName] = c.State.GetMemory()
	}
	if c.Module != nil {
		parts[moduleName] = c.Module
	}
	for _, f := range c.State.GetFiles() {
		parts[filesName+f.GetPath()] = []byte(f.GetContent())
	}
	return parts, nil
}

// canonicalJSON encodes a message as canonical JSON (RFC 8785).
func canonicalJSON(m proto.Message) ([]byte, error) {
	text, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write a %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	value := jsontext.Value(text)
	return value, value.Canonicalize()
}

// sumsOf returns the content of the file SHA256SUMS for the given parts.
func sumsOf(parts map[string][]byte) []byte {
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		sum := sha256.Sum256(parts[name])
		fmt.Fprintf(&out, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	return out.Bytes()
}

// pack encodes the parts, the checksums and the signature as a tar file. It returns [ErrLarge] if the file is too
// large.
func pack(parts map[string][]byte, sums, signature []byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put := func(name string, text []byte) error {
		if out.Len()+len(text) > MaxBytes {
			return ErrLarge
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
			return fmt.Errorf("write %q: %w", name, err)
		}
		_, err := w.Write(text)
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if err := put(name, parts[name]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(put(sumsName, sums), put(sigName, signature), w.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// unpack returns the parts of a tar file by name.
func unpack(text []byte) (map[string][]byte, error) {
	parts := make(map[string][]byte)
	r := tar.NewReader(bytes.NewReader(text))
	for remaining := len(text); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || parts[h.Name] != nil {
			return nil, fmt.Errorf("%.64q is not a file, or occurs twice", h.Name)
		}
		part, err := io.ReadAll(io.LimitReader(r, int64(remaining)+1))
		if err != nil {
			return nil, err
		}
		if remaining -= len(part); remaining < 0 { // a sparse file may be larger than its tar entry
			return nil, fmt.Errorf("%.64q is larger than the archive", h.Name)
		}
		parts[h.Name] = append([]byte{}, part...)
	}
}

func contentOf(parts map[string][]byte) (c Content, err error) {
	c = Content{Agent: new(wasmagentv1.ArchivedAgent), State: &wasmstorev1.State{Memory: parts[memoryName]}, Module: parts[moduleName]}
	if err := readMessage(agentName, parts[agentName], c.Agent); err != nil {
		return c, err
	}
	if c.Agent.GetFormatVersion() != formVersion {
		return c, fmt.Errorf("%s: format_version is %d, and must be %d", agentName, c.Agent.GetFormatVersion(), formVersion)
	}
	todos := new(wasmagentv1.ListTodosResponse)
	if err := readMessage(todosName, parts[todosName], todos); err != nil {
		return c, err
	}
	c.State.Todos, c.State.Sequence, c.State.Turns = todos.GetTodos(), c.Agent.GetGuestSequence(), c.Agent.GetAgent().GetTurnCount()
	if err := readLines(messagesName, parts, func() proto.Message {
		c.State.Messages = append(c.State.Messages, new(wasmagentv1.Message))
		return c.State.GetMessages()[len(c.State.GetMessages())-1]
	}, func() {}); err != nil {
		return c, err
	}
	var e *wasmagentv1.Event
	if err := readLines(journalName, parts, func() proto.Message { e = new(wasmagentv1.Event); return e }, func() {
		stored := &wasmstorev1.StoredEvent{Event: e}
		if e.GetEnvelopeDigest() != "" {
			stored.Envelope = []byte(e.GetEnvelopeJson())
		}
		e.EnvelopeJson = ""
		c.Events = append(c.Events, stored)
	}); err != nil {
		return c, err
	}
	return c, c.readFiles(parts)
}

// readFiles decodes the agent's files. It reads the times of their last changes from agent.json.
func (c *Content) readFiles(parts map[string][]byte) error {
	modified := make(map[string]*timestamppb.Timestamp)
	for _, f := range c.Agent.GetDetail().GetFiles() {
		modified[f.GetPath()] = f.GetModifiedAt()
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		path, is := strings.CutPrefix(name, filesName)
		switch {
		case is && modified[path] != nil:
			c.State.Files = append(c.State.Files, &wasmstorev1.File{Path: path, Content: string(parts[name]), ModifiedAt: modified[path]})
		case is, !slices.Contains([]string{agentName, journalName, memoryName, messagesName, moduleName, todosName}, name):
			return fmt.Errorf("%.64q is not known", name)
		}
	}
	if len(c.State.GetFiles()) != len(c.Agent.GetDetail().GetFiles()) {
		return fmt.Errorf("%s lists files that are missing", agentName)
	}
	return nil
}

func readMessage(name string, text []byte, into proto.Message) error {
	if err := protojson.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readLines decodes a part that has one message per line. For each line, readLines decodes the line into the message
// that next returns, and then calls done.
func readLines(name string, parts map[string][]byte, next func() proto.Message, done func()) error {
	text, ok := parts[name]
	if !ok || len(text) > 0 && text[len(text)-1] != '\n' {
		return fmt.Errorf("%s is missing or incomplete", name)
	}
	for one := range bytes.Lines(text) {
		if err := readMessage(name, bytes.TrimSuffix(one, []byte("\n")), next()); err != nil {
			return err
		}
		done()
	}
	return nil
}
