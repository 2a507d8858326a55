//go:build linux

// Package keychaintest starts a D-Bus session with a Secret Service for tests.
package keychaintest

import (
	"bufio"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
)

const (
	service    = "org.freedesktop.secrets"
	path       = dbus.ObjectPath("/org/freedesktop/secrets")
	collection = dbus.ObjectPath("/org/freedesktop/secrets/collection/login")
	prompt     = dbus.ObjectPath("/org/freedesktop/secrets/prompt/1")
	none       = dbus.ObjectPath("/")
	iface      = "org.freedesktop.Secret."
)

// StartBus starts a D-Bus session without services and returns its address. If dbus-daemon is not installed, StartBus
// skips the test.
func StartBus(t testing.TB) string {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("install dbus-daemon to run this test")
	}
	address := "unix:path=" + t.TempDir() + "/bus"
	c := exec.Command(program, "--session", "--nofork", "--nopidfile", "--print-address", "--address="+address) //nolint:gosec,noctx // the test stops it
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n') // the daemon prints its address when it listens
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// Service is a Secret Service with one collection, which is the default collection.
type Service struct {
	// Address is the address of the D-Bus session in which the service is running.
	Address string
	// Prompts receives a value when a client opens the dialog to unlock the collection.
	Prompts chan struct{}

	conn   *dbus.Conn
	mu     sync.Mutex
	locked bool
	next   int
	items  map[dbus.ObjectPath]item
}

type item struct {
	attributes map[string]string
	value      []byte
}

// secret is the type Secret of the Secret Service specification.
type secret struct {
	Session     dbus.ObjectPath
	Parameters  []byte
	Value       []byte
	ContentType string
}

// Start starts a D-Bus session with a Secret Service that is unlocked and empty.
func Start(t testing.TB) *Service {
	t.Helper()
	s := &Service{Address: StartBus(t), Prompts: make(chan struct{}, 100), items: make(map[dbus.ObjectPath]item)}
	conn, err := dbus.Connect(s.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.conn = conn
	s.export(t, path, "Service", map[string]any{
		"OpenSession": s.openSession, "Unlock": s.unlock,
	})
	s.export(t, collection, "Collection", map[string]any{"SearchItems": s.searchItems, "CreateItem": s.createItem})
	s.export(t, "/org/freedesktop/secrets/session/1", "Session", map[string]any{"Close": func() *dbus.Error { return nil }})
	s.export(t, prompt, "Prompt", map[string]any{"Prompt": s.prompt})
	properties := map[string]any{"Get": func(string, string) (dbus.Variant, *dbus.Error) {
		return dbus.MakeVariant([]dbus.ObjectPath{collection}), nil
	}}
	if err := conn.ExportMethodTable(properties, path, "org.freedesktop.DBus.Properties"); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName(service, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(reply, err)
	}
	return s
}

func (s *Service) export(t testing.TB, at dbus.ObjectPath, name string, methods map[string]any) {
	t.Helper()
	if err := s.conn.ExportMethodTable(methods, at, iface+name); err != nil {
		t.Fatal(err)
	}
}

// Lock locks the collection. Each request then opens a dialog, which stays open until Unlock is called.
func (s *Service) Lock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locked = true
}

// Unlock unlocks the collection and completes open dialogs.
func (s *Service) Unlock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locked = false
	_ = s.conn.Emit(prompt, iface+"Prompt.Completed", false, dbus.MakeVariant([]dbus.ObjectPath{collection}))
}

// Put stores a value under a name, as package keychain does.
func (s *Service) Put(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(map[string]string{"service": "sluice", "username": name}, []byte(value))
}

// Values returns a map from the names of all entries to their values.
func (s *Service) Values() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]string)
	for _, one := range s.items {
		out[one.attributes["username"]] = string(one.value)
	}
	return out
}

// put stores an item. The caller must hold s.mu.
func (s *Service) put(attributes map[string]string, value []byte) dbus.ObjectPath {
	for at, old := range s.items {
		if maps.Equal(old.attributes, attributes) {
			s.items[at] = item{attributes, value}
			return at
		}
	}
	s.next++
	at := dbus.ObjectPath(fmt.Sprintf("%s/%d", collection, s.next))
	s.items[at] = item{attributes, value}
	_ = s.conn.ExportMethodTable(map[string]any{
		"GetSecret": func(session dbus.ObjectPath) (secret, *dbus.Error) { return s.get(at, session) },
		"Delete":    func() (dbus.ObjectPath, *dbus.Error) { return s.remove(at) },
	}, at, iface+"Item")
	return at
}

func (s *Service) openSession(string, dbus.Variant) (dbus.Variant, dbus.ObjectPath, *dbus.Error) {
	return dbus.MakeVariant(""), "/org/freedesktop/secrets/session/1", nil
}

func (s *Service) unlock(objects []dbus.ObjectPath) ([]dbus.ObjectPath, dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked {
		return []dbus.ObjectPath{}, prompt, nil
	}
	return objects, none, nil
}

func (s *Service) prompt(string) *dbus.Error {
	s.Prompts <- struct{}{}
	return nil
}

func (s *Service) searchItems(search map[string]string) ([]dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []dbus.ObjectPath{}
	for at, one := range s.items {
		if maps.Equal(one.attributes, search) {
			found = append(found, at)
		}
	}
	return found, nil
}

func (s *Service) createItem(properties map[string]dbus.Variant, value secret, _ bool) (created, dialog dbus.ObjectPath, err *dbus.Error) {
	attributes, ok := properties[iface+"Item.Attributes"].Value().(map[string]string)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok || s.locked {
		return none, none, dbus.MakeFailedError(fmt.Errorf("locked, or no attributes"))
	}
	return s.put(attributes, value.Value), none, nil
}

func (s *Service) get(at, session dbus.ObjectPath) (secret, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.items[at]
	if !ok || s.locked {
		return secret{}, dbus.MakeFailedError(fmt.Errorf("locked, or no item"))
	}
	return secret{Session: session, Parameters: []byte{}, Value: one.value, ContentType: "text/plain"}, nil
}

func (s *Service) remove(at dbus.ObjectPath) (dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, at)
	return none, nil
}
