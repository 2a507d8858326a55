// Package forms stores which clients answer the forms that the gateway sends to their users. Some clients declare
// elicitation but never answer forms. Without this package, a call would wait for an answer although the user does not
// see the form.
package forms

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/pki"
)

const (
	// Timeout is how long a call waits for an answer to its form if the client has never answered a form. After that,
	// the caller receives a refusal that contains the approval's id. Timeout is shorter than 60 s, because several
	// clients give up on a call after 60 s.
	Timeout = 50 * time.Second
	// firstSilence is how long the gateway sends no forms to a client after the client has left its first form
	// unanswered. This time doubles with each further unanswered form, up to lastSilence.
	firstSilence = time.Hour
	lastSilence  = 24 * time.Hour
	// keep is how long an entry is stored after its last change.
	keep = 30 * 24 * time.Hour

	// maxClients limits how many entries are stored, and maxOfPrincipal limits how many of them belong to one
	// principal. If a principal has too many entries, the oldest entry of that principal is removed.
	maxClients     = 512
	maxOfPrincipal = 8
	// maxName limits the length of a client's name and of its version, in bytes.
	maxName = 64
	// maxFile limits the size of the file with the entries, in bytes.
	maxFile = 1 << 20
)

// Client identifies a program that a principal uses. Client contains the principal, because clients' names and versions
// are not verified. Otherwise another principal could declare the same name and change this client's entry.
type Client struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"subject"`
	Agent   string `json:"agent,omitzero"`
	Name    string `json:"name,omitzero"`
	Version string `json:"version,omitzero"`
}

func (c Client) clean() Client {
	c.Name, c.Version = shorten(c.Name), shorten(c.Version)
	return c
}

func shorten(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxName)], "") }

func (c Client) isOf(other Client) bool {
	return c.Tenant == other.Tenant && c.Subject == other.Subject && c.Agent == other.Agent
}

// State describes whether a client answers forms.
type State int

const (
	// Unknown means that the gateway does not know whether the client answers forms. The gateway sends forms to the
	// client.
	Unknown State = iota
	// Answers means that the client has answered a form.
	Answers
	// Silent means that the client has not answered its last form. The gateway sends no forms to the client until the time
	// in the client's [Entry].
	Silent
)

// Entry describes whether one client answers forms.
type Entry struct {
	Client

	// Answered is true if the client has answered a form. If it is false, Unanswered is how many forms the client has
	// not answered, and the gateway sends it no forms before Until.
	Answered   bool      `json:"answered,omitzero"`
	Unanswered int       `json:"unanswered,omitzero"`
	Until      time.Time `json:"until,omitzero"`
	Changed    time.Time `json:"changed"`
}

// Memory stores which clients answer forms. It writes the entries to a file, and Open reads them after a restart. It is
// safe for concurrent use.
type Memory struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	entries []Entry // in the order of their last changes, oldest first
}

// Open reads the memory from a file, which need not exist. If the file cannot be read, Open logs a warning and returns
// an empty memory. The gateway then sends forms again to clients that do not answer them, and Timeout applies again to
// clients that have already answered a form.
func Open(ctx context.Context, path string, log *slog.Logger) *Memory {
	m := &Memory{path: path, log: log}
	if err := m.load(); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.entries = nil
		log.WarnContext(ctx, "the list of clients that do not answer forms can't be read", "error", err)
	}
	return m
}

func (m *Memory) load() (err error) {
	f, err := os.Open(m.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &m.entries); err != nil {
		return fmt.Errorf("%s: %w", m.path, err)
	}
	m.entries = m.entries[max(0, len(m.entries)-maxClients):]
	return nil
}

// State returns whether the client answers forms.
func (m *Memory) State(of Client) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.find(of.clean())
	switch now := time.Now(); {
	case at < 0 || now.Sub(m.entries[at].Changed) >= keep:
		return Unknown
	case m.entries[at].Answered:
		return Answers
	case now.Before(m.entries[at].Until):
		return Silent
	default:
		return Unknown
	}
}

// Silent returns the clients that currently receive no forms. They are sorted by tenant, subject, agent, name and
// version.
func (m *Memory) Silent() (out []Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, e := range m.entries {
		if !e.Answered && now.Before(e.Until) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Subject, b.Subject), strings.Compare(a.Agent, b.Agent),
			strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
	})
	return out
}

// RecordAnswered records that the client has answered a form.
func (m *Memory) RecordAnswered(ctx context.Context, of Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of = of.clean()
	now := time.Now()
	if at := m.find(of); at >= 0 && m.entries[at].Answered && now.Sub(m.entries[at].Changed) < keep/2 {
		return // the entry is updated rarely, to avoid a file write for each answer
	}
	m.put(ctx, Entry{Client: of, Answered: true, Changed: now})
}

// RecordUnanswered records that the client has not answered a form. It does nothing if the client has ever answered a
// form, because its user was then probably only away.
func (m *Memory) RecordUnanswered(ctx context.Context, of Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of = of.clean()
	now, e := time.Now(), Entry{Client: of}
	if at := m.find(of); at >= 0 && now.Sub(m.entries[at].Changed) < keep {
		e = m.entries[at]
	}
	if e.Answered || now.Before(e.Until) {
		return
	}
	silence := firstSilence
	for range e.Unanswered {
		silence = min(2*silence, lastSilence)
	}
	e.Unanswered, e.Until, e.Changed = min(e.Unanswered+1, maxOfPrincipal), now.Add(silence), now
	m.log.WarnContext(ctx, "a client did not answer a form; for some time its calls wait for approvers only",
		"subject", of.Subject, "client", of.Name, "client_version", of.Version, "until", e.Until)
	m.put(ctx, e)
}

// find returns the index of the client's entry, or -1 if there is none. The caller must hold the lock.
func (m *Memory) find(of Client) int {
	return slices.IndexFunc(m.entries, func(e Entry) bool { return e.Client == of })
}

// put stores an entry in the list and writes the list to the file. The caller must hold the lock.
func (m *Memory) put(ctx context.Context, e Entry) {
	now := time.Now()
	m.entries = slices.DeleteFunc(m.entries, func(old Entry) bool { return old.Client == e.Client || now.Sub(old.Changed) >= keep })
	own := func(old Entry) bool { return old.isOf(e.Client) }
	n := 0
	for _, old := range m.entries {
		if own(old) {
			n++
		}
	}
	if n >= maxOfPrincipal {
		first := slices.IndexFunc(m.entries, own)
		m.entries = slices.Delete(m.entries, first, first+1)
	}
	if len(m.entries) >= maxClients {
		m.entries = slices.Delete(m.entries, 0, 1)
	}
	m.entries = append(m.entries, e)
	raw, err := json.Marshal(m.entries)
	if err == nil {
		err = pki.WriteFile(m.path, raw, 0o600)
	}
	if err != nil {
		m.log.WarnContext(ctx, "the clients that do not answer forms were not stored, so a restart forgets them", "error", err)
	}
}
