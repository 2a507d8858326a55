package store_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"} {
		_ = os.Setenv(name, value) // the fake object store accepts any values
	}
	os.Exit(sqlstoretest.Main(m))
}

func startS3(t *testing.T) string {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("states"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	return "s3://states?use_path_style=true&region=us-east-1&endpoint=" + server.URL
}

func eachStore(t *testing.T, test func(t *testing.T, open func(holder string) *store.Store)) {
	t.Helper()
	for name, config := range map[string]func(t *testing.T) store.Config{
		"SQLite, folder":     func(*testing.T) store.Config { return store.Config{Source: sqlstore.SQLite} },
		"PostgreSQL, folder": func(t *testing.T) store.Config { return store.Config{Source: sqlstoretest.Postgres(t)} },
		"PostgreSQL, S3": func(t *testing.T) store.Config {
			return store.Config{Source: sqlstoretest.Postgres(t), Bucket: startS3(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, dir := config(t), t.TempDir()
			test(t, func(holder string) *store.Store {
				own := cfg
				own.File, own.Folder, own.Holder, own.Log = filepath.Join(dir, "agents.db"), filepath.Join(dir, "states"), holder, slog.New(slog.NewTextHandler(t.Output(), nil))
				s, err := store.Open(t.Context(), own)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				return s
			})
		})
	}
}

var limits = store.AgentLimits{Total: 100, PerPerson: 10}

func person(subject string, chain ...string) *identityv1.Principal {
	p := &identityv1.Principal{Tenant: "t", Subject: subject}
	for _, one := range chain {
		p.Chain = append(p.Chain, &identityv1.Principal{Tenant: "t", Subject: one})
	}
	return p
}

func record(id string, creator *identityv1.Principal) *wasmstorev1.Record {
	return &wasmstorev1.Record{Id: id, Creator: creator, State: wasmagentv1.AgentState_AGENT_STATE_IDLE, Head: &wasmstorev1.Head{Place: 1, Bytes: 10}}
}

func event(text string) *wasmstorev1.StoredEvent {
	return &wasmstorev1.StoredEvent{Event: &wasmagentv1.Event{Message: text}}
}

// create stores an agent with one event and a state.
func create(t *testing.T, s *store.Store, id string, creator *identityv1.Principal) store.Change {
	t.Helper()
	c := store.Change{ID: id, Record: record(id, creator), State: &wasmstorev1.State{Memory: []byte("first")}, Events: []*wasmstorev1.StoredEvent{event("created")}, FirstPosition: 1}
	if _, err := s.Create(t.Context(), c, "", limits); err != nil {
		t.Fatal(err)
	}
	return c
}

// A committed change is stored completely. A change based on an earlier version is refused.
func TestCommit_IsAtomicAndRefusesEarlierVersions(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		create(t, s, "a", person("ana"))
		row, err := s.Get(t.Context(), "a")
		if err != nil || row.Version != 1 || row.Turn != store.NoTurn {
			t.Fatalf("%+v %v", row, err)
		}
		first := row.GetStateKey()
		next := proto.CloneOf(row.Record)
		next.Turns, next.Head = 1, &wasmstorev1.Head{Place: 3}
		change := store.Change{ID: "a", Version: 1, Record: next, State: &wasmstorev1.State{Memory: []byte("second")}, Events: []*wasmstorev1.StoredEvent{event("two"), event("three")}, FirstPosition: 2}
		if version, err := s.Commit(t.Context(), change); err != nil || version != 2 {
			t.Fatalf("%d %v", version, err)
		}
		row, err = s.Get(t.Context(), "a")
		if err != nil || row.GetTurns() != 1 || row.Version != 2 {
			t.Fatalf("%+v %v", row, err)
		}
		if state, err := s.State(t.Context(), "a", row.GetStateKey(), row.GetStateDigest()); err != nil || string(state.GetMemory()) != "second" {
			t.Errorf("%v %v", state, err)
		}
		if _, err := s.State(t.Context(), "a", first, row.GetStateDigest()); !errors.Is(err, store.ErrStateLost) {
			t.Errorf("the old state: %v", err)
		}
		change.Record = proto.CloneOf(next)
		if _, err := s.Commit(t.Context(), change); !errors.Is(err, store.ErrStale) {
			t.Errorf("a change of an earlier version: %v", err)
		}
		change.Version, change.Record, change.State = 2, nil, nil
		if _, err := s.Commit(t.Context(), change); err == nil {
			t.Error("two events with the same position are stored")
		}
		all, more, err := s.Events(t.Context(), "a", 0, 2, 1<<20)
		if err != nil || !more || len(all) != 2 || all[1].GetEvent().GetMessage() != "two" {
			t.Errorf("%v %v %v", all, more, err)
		}
		all, more, err = s.Events(t.Context(), "a", 0, 10, 1)
		if err != nil || !more || len(all) != 1 {
			t.Errorf("events of at most one byte: %v %v %v", all, more, err)
		}
		all, more, err = s.Events(t.Context(), "a", 2, 10, 1<<20)
		if err != nil || more || len(all) != 1 {
			t.Errorf("events after the second: %v %v %v", all, more, err)
		}
		if _, err := s.Get(t.Context(), "b"); !errors.Is(err, store.ErrUnknown) {
			t.Errorf("an agent that does not exist: %v", err)
		}
	})
}

// A new agent is refused if it would exceed the maximum number of agents in total, the maximum for its owner, or the
// maximum number of its creator's descendants.
func TestCreate_RefusesBeyondLimits(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		create(t, s, "a", person("ana"))
		create(t, s, "b", person("agent:t/a", "ana"))
		more := func(creator *identityv1.Principal, room store.AgentLimits) error {
			c := store.Change{ID: "c", Record: record("c", creator), State: new(wasmstorev1.State), FirstPosition: 1}
			_, err := s.Create(t.Context(), c, "", room)
			return err
		}
		for name, c := range map[string]struct {
			creator *identityv1.Principal
			room    store.AgentLimits
			want    error
		}{
			"total":      {person("ben"), store.AgentLimits{Total: 2, PerPerson: 10}, store.ErrAgentsFull},
			"per person": {person("ana"), store.AgentLimits{Total: 10, PerPerson: 1}, store.ErrAgentsFull},
			"children":   {person("agent:t/a", "ana"), store.AgentLimits{Total: 10, PerPerson: 10, Descendants: map[string]int{"agent:t/a": 1}}, store.ErrDescendantsFull},
		} {
			if err := more(c.creator, c.room); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
		if n, err := s.CountDescendants(t.Context(), "t", "ana"); err != nil || n != 2 {
			t.Errorf("%d are below ana: %v", n, err)
		}
		if err := more(person("ben"), limits); err != nil {
			t.Error(err)
		}
	})
}

func ids(rows []*store.Row) (out []string) {
	for _, row := range rows {
		out = append(out, row.GetId())
	}
	return out
}

// The list contains the agents that a principal created, and the agents whose delegation chain contains the principal,
// from newest to oldest.
func TestList_ReturnsPagesOfVisibleAgents(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		for i := range 5 {
			create(t, s, fmt.Sprint("a", i), person("ana"))
		}
		create(t, s, "b", person("agent:t/a0", "ana"))
		create(t, s, "c", person("ben"))
		page, n, err := s.List(t.Context(), store.Filter{Tenant: "t", Principal: person("ana"), Limit: 3})
		if err != nil || n != 6 || !slices.Equal(ids(page), []string{"b", "a4", "a3"}) {
			t.Fatalf("%v of %d: %v", ids(page), n, err)
		}
		page, _, err = s.List(t.Context(), store.Filter{Tenant: "t", Principal: person("ana"), Limit: 10, Before: page[2].Position})
		if err != nil || !slices.Equal(ids(page), []string{"a2", "a1", "a0"}) {
			t.Errorf("%v: %v", ids(page), err)
		}
		if page, n, err = s.List(t.Context(), store.Filter{Tenant: "t", Limit: 10}); err != nil || n != 7 || len(page) != 7 {
			t.Errorf("all are %v: %v", ids(page), err)
		}
		if page, n, err = s.List(t.Context(), store.Filter{Tenant: "other", Limit: 10}); err != nil || n != 0 {
			t.Errorf("the agents of another tenant are %v: %v", ids(page), err)
		}
		if page, n, err = s.List(t.Context(), store.Filter{Tenant: "t", States: []wasmagentv1.AgentState{wasmagentv1.AgentState_AGENT_STATE_STOPPED}, Limit: 10}); err != nil || n != 0 || len(page) != 0 {
			t.Errorf("the stopped agents are %v: %v", ids(page), err)
		}
		if all, own, err := s.StoredSizes(t.Context(), principal.Key{Tenant: "t", Subject: "ben"}); err != nil || own == 0 || all <= own {
			t.Errorf("ben has %d of %d: %v", own, all, err)
		}
	})
}

// No right is used more often than it allows. The uses of one call are either all counted or not counted at all.
func TestCountUses_CountsAllOrNone(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		create(t, s, "a", person("ana"))
		create(t, s, "b", person("ana"))
		of := func(id string, most ...int64) store.UseRequest {
			request := store.UseRequest{Budget: store.Budget{Tenant: "t", JournalID: id}}
			for place, n := range most {
				request.Matches = append(request.Matches, manifest.Match{Index: place, MaxUses: n})
			}
			return request
		}
		var counted []store.CountedUse
		for range 3 {
			uses, err := s.CountUses(t.Context(), []store.UseRequest{of("a", 1, 2)})
			if err != nil {
				t.Fatal(err)
			}
			counted = append(counted, uses...)
		}
		if _, err := s.CountUses(t.Context(), []store.UseRequest{of("b", 5), of("a", 1, 2)}); !errors.Is(err, manifest.ErrSpent) {
			t.Errorf("a fourth use: %v", err)
		}
		for range 5 { // the refused call must not have counted a use of b
			if _, err := s.CountUses(t.Context(), []store.UseRequest{of("b", 5)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.UncountUses(t.Context(), counted[:1]); err != nil {
			t.Fatal(err)
		}
		if _, err := s.CountUses(t.Context(), []store.UseRequest{of("a", 1, 2)}); err != nil {
			t.Errorf("a use after one was given back: %v", err)
		}
		found := []manifest.ModelMatch{{Tokens: 100, Nanos: -1}, {Match: manifest.Match{Index: 1}, Tokens: -1, Nanos: 50}}
		for i, want := range []bool{true, true, true, false} {
			left, err := s.HasUnspentRight(t.Context(), store.Budget{Tenant: "t", JournalID: "a"}, found)
			if err != nil || left != want {
				t.Errorf("after %d questions the right is not used up: %v %v", i, left, err)
			}
			if err := s.CountModelUse(t.Context(), []store.ModelUse{{Budget: store.Budget{Tenant: "t", JournalID: "a"}, Matches: found, Tokens: 60, Nanos: 60}}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// While a process has the lease on a turn, AbandonedTurns does not return the agent to other processes. However,
// another process can take over the turn. If the store is not shared, the next process finds the turn immediately.
func TestLease_HidesTurnUntilSeized(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		create(t, s, "a", person("ana"))
		if _, err := s.Commit(t.Context(), store.Change{ID: "a", Version: 1, Events: []*wasmstorev1.StoredEvent{event("parked")}, FirstPosition: 2, Turn: store.DetachedTurn}); err != nil {
			t.Fatal(err)
		}
		if abandoned, err := s.AbandonedTurns(t.Context()); err != nil || !slices.Equal(abandoned, []string{"a"}) {
			t.Errorf("the process that had the turn finds %v: %v", abandoned, err)
		}
		if !s.IsShared { // the store belongs to one process at a time
			next := open("next")
			row, err := next.Get(t.Context(), "a")
			if abandoned, otherErr := next.AbandonedTurns(t.Context()); err != nil || otherErr != nil || row.HeldElsewhere || len(abandoned) != 1 {
				t.Errorf("the next process finds %v %v %v", row, abandoned, errors.Join(err, otherErr))
			}
			return
		}
		other := open("there")
		row, err := other.Get(t.Context(), "a")
		if abandoned, otherErr := other.AbandonedTurns(t.Context()); err != nil || otherErr != nil || !row.HeldElsewhere || len(abandoned) != 0 {
			t.Errorf("another process finds %v %v %v", row, abandoned, errors.Join(err, otherErr))
		}
		if err := s.RenewLeases(t.Context(), []string{"a"}); err != nil {
			t.Fatal(err)
		}
		if row, err := other.TakeOverTurn(t.Context(), "a"); err != nil || row.Version != 3 || row.Turn != store.DetachedTurn || row.HeldElsewhere {
			t.Errorf("%+v %v", row, err)
		}
		if _, err := s.Commit(t.Context(), store.Change{ID: "a", Version: 2, Turn: store.DetachedTurn}); !errors.Is(err, store.ErrStale) {
			t.Errorf("the first process stores a change after the turn was seized: %v", err)
		}
	})
}

// An agent that has ended is removed together with its state and its journal. An agent that can still be resumed is
// kept, unless its removal is forced.
func TestRemoveAgent_RemovesEverythingUnlessResumed(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		for i, id := range []string{"lives", "back", "gone"} {
			create(t, s, id, person("ana"))
			row, err := s.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			ended := proto.CloneOf(row.Record)
			if id != "lives" {
				ended.RestorableUntil = timestamppb.New(time.Now().Add([]time.Duration{0, time.Hour, -time.Second}[i]))
			}
			if _, err := s.Commit(t.Context(), store.Change{ID: id, Version: 1, Record: ended}); err != nil {
				t.Fatal(err)
			}
		}
		if expired, err := s.ExpiredAgents(t.Context()); err != nil || !slices.Equal(expired, []string{"gone"}) {
			t.Errorf("gone are %v: %v", expired, err)
		}
		if ended, err := s.EndedAgents(t.Context(), principal.Key{Tenant: "t", Subject: "ana"}); err != nil || !slices.Equal(ended, []string{"gone", "back"}) {
			t.Errorf("ended are %v: %v", ended, err)
		}
		before, err := s.Get(t.Context(), "gone")
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"lives", "back", "gone"} {
			if ended, err := s.RemoveAgent(t.Context(), id, true); err != nil || ended != (id == "gone") {
				t.Fatal(id, ended, err)
			}
		}
		for id, want := range map[string]error{"lives": nil, "back": nil, "gone": store.ErrUnknown} {
			if _, err := s.Get(t.Context(), id); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", id, err, want)
			}
		}
		if _, err := s.State(t.Context(), "gone", before.GetStateKey(), before.GetStateDigest()); !errors.Is(err, store.ErrStateLost) {
			t.Errorf("the state of the removed agent: %v", err)
		}
		if all, _, err := s.Events(t.Context(), "gone", 0, 10, 1<<20); err != nil || len(all) != 0 {
			t.Errorf("the events of the removed agent are %v: %v", all, err)
		}
		if ended, err := s.RemoveAgent(t.Context(), "back", false); err != nil || !ended {
			t.Fatal(ended, err)
		}
		if _, err := s.Get(t.Context(), "back"); !errors.Is(err, store.ErrUnknown) {
			t.Errorf("an agent that is removed: %v", err)
		}
	})
}
