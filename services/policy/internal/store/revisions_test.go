package store_test

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// idOf returns the ID of a revision for tests. It begins with the given digit.
func idOf(digit string) string { return digit + strings.Repeat("0", 63) }

func activate(t *testing.T, s *store.Store, want store.Activation) store.Revision {
	t.Helper()
	active, changed, err := s.ActivateRevision(t.Context(), &want)
	if err != nil || !changed || active.ID != want.ID || active.Activated.IsZero() {
		t.Fatalf("activate %s: %+v, changed: %t, %v", want.ID, active, changed, err)
	}
	return active
}

// Two processes use the same store. Each process reads what the other has activated. A process that opens the store
// later finds all activations.
func TestRevisions_AreStored(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		ctx := t.Context()
		if active, err := one.ActiveRevision(ctx); err != nil || active != (store.Revision{}) {
			t.Fatalf("a new store has %+v: %v", active, err)
		}
		if all, err := one.Revisions(ctx, 0, 10); err != nil || all != nil {
			t.Fatalf("a new store has %+v: %v", all, err)
		}
		a, b, none := idOf("a"), idOf("b"), ""
		if _, _, err := one.ActivateRevision(ctx, &store.Activation{ID: a, Documents: []byte("A"), Expected: &b}); !errors.Is(err, store.ErrRevisionChanged) {
			t.Errorf("a revision is expected in a new store: %v", err)
		}
		first := activate(t, one, store.Activation{ID: a, Documents: []byte("A\x00"), Author: "ana", Reason: "first", Expected: &none})
		second := activate(t, two, store.Activation{ID: b, Documents: []byte("B"), Author: "ben", Reason: "second", Expected: &a})
		back := activate(t, one, store.Activation{ID: a, Documents: []byte("A\x00"), Author: "ana", Reason: "back"})
		if first.Number != 1 || second.Number != 2 || back.Number != 3 || !second.Activated.After(first.Activated) || !back.Activated.After(second.Activated) {
			t.Errorf("activated as %+v, %+v, %+v", first, second, back)
		}
		same, changed, err := two.ActivateRevision(ctx, &store.Activation{ID: a, Documents: []byte("A\x00"), Author: "eve", Reason: "again", Expected: &b})
		if diff := cmp.Diff(back, same); diff != "" || changed || err != nil {
			t.Errorf("the active documents again: changed: %t, %v (-active +again):\n%s", changed, err, diff)
		}
		active, changed, err := two.ActivateRevision(ctx, &store.Activation{ID: idOf("c"), Documents: []byte("C"), Expected: &b})
		if !errors.Is(err, store.ErrRevisionChanged) || changed || active != back {
			t.Errorf("another revision is expected: %+v, %t, %v", active, changed, err)
		}
		lost := &store.Activation{ID: idOf("c"), Documents: []byte("C"), Known: store.Revision{Number: 4, ID: b, Activated: back.Activated}}
		if _, changed, err := two.ActivateRevision(ctx, lost); !errors.Is(err, store.ErrRevisionsLost) || changed {
			t.Errorf("a revision that the store does not have was active: %t, %v", changed, err)
		}
		three := open()
		if active, err := three.ActiveRevision(ctx); err != nil || active != back {
			t.Errorf("active: %+v, %v", active, err)
		}
		page, err := three.Revisions(ctx, 0, 2)
		rest, err2 := three.Revisions(ctx, second.Number, 2)
		if diff := cmp.Diff([]store.Revision{back, second, first}, append(page, rest...)); diff != "" || err != nil || err2 != nil {
			t.Errorf("%v, %v (-want +listed):\n%s", err, err2, diff)
		}
		if documents, err := three.DocumentsOf(ctx, a); err != nil || string(documents) != "A\x00" {
			t.Errorf("the documents are %q: %v", documents, err)
		}
		if _, err := three.DocumentsOf(ctx, idOf("c")); !errors.Is(err, store.ErrRevisionUnknown) {
			t.Errorf("documents that were refused: %v", err)
		}
	})
}

func TestRevisions_AreFoundByTheirFirstDigits(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		one, two := "abcd0"+strings.Repeat("0", 59), "abcd1"+strings.Repeat("0", 59)
		activate(t, s, store.Activation{ID: one, Documents: []byte("1")})
		activate(t, s, store.Activation{ID: two, Documents: []byte("2")})
		newest := activate(t, s, store.Activation{ID: one, Documents: []byte("1"), Reason: "again"})
		for _, prefix := range []string{"abcd0", one} {
			if found, err := s.FindRevision(t.Context(), prefix); err != nil || found != newest {
				t.Errorf("%s: %+v, %v", prefix, found, err)
			}
		}
		if _, err := s.FindRevision(t.Context(), "abcd"); !errors.Is(err, store.ErrRevisionAmbiguous) {
			t.Errorf("two revisions begin with abcd: %v", err)
		}
		if _, err := s.FindRevision(t.Context(), "abce"); !errors.Is(err, store.ErrRevisionUnknown) {
			t.Errorf("no revision begins with abce: %v", err)
		}
	})
}

// Two processes activate revisions, and both expect the same active revision. Only one of them succeeds.
func TestRevisions_OneOfConcurrentActivationsSucceeds(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		base := activate(t, open(), store.Activation{ID: idOf("0"), Documents: []byte("0")})
		errs := make(chan error, 2)
		for i, s := range []*store.Store{open(), open()} {
			go func() {
				_, _, err := s.ActivateRevision(t.Context(), &store.Activation{ID: idOf(fmt.Sprint(i + 1)), Documents: []byte{byte(i)}, Expected: &base.ID})
				errs <- err
			}()
		}
		one, two := <-errs, <-errs
		if (one == nil) == (two == nil) || !errors.Is(errors.Join(one, two), store.ErrRevisionChanged) {
			t.Errorf("the results are %v and %v", one, two)
		}
		if active, err := open().ActiveRevision(t.Context()); err != nil || active.Number != 2 {
			t.Errorf("active: %+v, %v", active, err)
		}
	})
}

func TestRevisions_AreBounded(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		for n := range store.MaxRevisions + 3 {
			activate(t, s, store.Activation{ID: fmt.Sprintf("%064x", n), Documents: []byte{1}})
		}
		all, err := s.Revisions(t.Context(), 0, store.MaxRevisions+3)
		if err != nil || len(all) != store.MaxRevisions || all[0].Number != store.MaxRevisions+3 {
			t.Fatalf("%d revisions are stored: %v", len(all), err)
		}
		if _, err := s.DocumentsOf(t.Context(), fmt.Sprintf("%064x", 2)); !errors.Is(err, store.ErrRevisionUnknown) {
			t.Errorf("the documents of a deleted revision: %v", err)
		}
		if _, err := s.DocumentsOf(t.Context(), fmt.Sprintf("%064x", 3)); err != nil {
			t.Errorf("the documents of the oldest revision: %v", err)
		}
	})
}

// The clock is set back after an activation. The next activation nevertheless has a later time.
func TestRevisions_TimesIncreaseWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "catalogue.db")
	s, err := store.Open(t.Context(), store.Config{Source: "sqlite", File: file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	activate(t, s, store.Activation{ID: idOf("a"), Documents: []byte("A")})
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // the statement reports errors
	if _, err := db.ExecContext(t.Context(), "UPDATE policy_activations SET activated = activated + 3600000000"); err != nil {
		t.Fatal(err)
	}
	before, err := s.ActiveRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after := activate(t, s, store.Activation{ID: idOf("b"), Documents: []byte("B")}); !after.Activated.After(before.Activated) {
		t.Errorf("activated at %v, after %v", after.Activated, before.Activated)
	}
}

// An approval can be used only once to activate documents. It can be used only to replace the activation that it was
// given for. This is also true if the documents of that activation have become active again.
func TestActivateRevision_ByAnApproval(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s, ctx := open(), t.Context()
		a, b, zero, one := idOf("a"), idOf("b"), int64(0), int64(1)
		activate(t, s, store.Activation{ID: a, Documents: []byte("A"), Replaces: &zero})
		change := store.Activation{ID: b, Documents: []byte("B"), Author: "ana", Replaces: &one, Approval: "x", ApprovedBy: `["ben"]`}
		if got := activate(t, s, change); got.Number != 2 || got.Approval != "x" || got.ApprovedBy != `["ben"]` {
			t.Errorf("activated as %+v", got)
		}
		if active, err := open().ActiveRevision(ctx); err != nil || active.Approval != "x" || active.ApprovedBy != `["ben"]` {
			t.Errorf("active: %+v, %v", active, err)
		}
		back := activate(t, s, store.Activation{ID: a, Documents: []byte("A")}) // the documents of the first activation, with another number
		if active, changed, err := s.ActivateRevision(ctx, &change); !errors.Is(err, store.ErrRevisionChanged) || changed || active != back {
			t.Errorf("another activation of the documents is active: %+v, %t, %v", active, changed, err)
		}
		change.Replaces = &back.Number
		if active, changed, err := s.ActivateRevision(ctx, &change); !errors.Is(err, store.ErrApprovalUsed) || changed || active != back {
			t.Errorf("the approval was used: %+v, %t, %v", active, changed, err)
		}
	})
}

func TestStageChange_KeepsTheFirstParams(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s, ctx := open(), t.Context()
		first := store.StagedChange{ID: idOf("1"), Params: `{"a":1}`}
		for _, params := range []string{first.Params, `{"a":2}`} {
			if got, err := s.StageChange(ctx, store.StagedChange{ID: first.ID, Params: params}); err != nil || got != first {
				t.Errorf("staged as %+v: %v", got, err)
			}
		}
		if err := s.SetApproval(ctx, first.ID, "x"); err != nil {
			t.Fatal(err)
		}
		first.Approval = "x"
		if got, ok, err := open().FindChange(ctx, first.ID); err != nil || !ok || got != first {
			t.Errorf("found %+v, %t, %v", got, ok, err)
		}
		if got, ok, err := s.FindChange(ctx, idOf("2")); err != nil || ok {
			t.Errorf("an unknown change: %+v, %v", got, err)
		}
		if got, err := s.DeleteChanges(ctx); err != nil || got != nil {
			t.Errorf("deleted %v although nothing was activated: %v", got, err)
		}
		activate(t, s, store.Activation{ID: idOf("a"), Documents: []byte("A")})
		if _, err := s.StageChange(ctx, store.StagedChange{ID: idOf("3")}); !errors.Is(err, store.ErrRevisionChanged) {
			t.Errorf("a change of an older activation is staged: %v", err)
		}
		if _, err := s.StageChange(ctx, store.StagedChange{ID: idOf("4"), Replaces: 1, Params: "{}"}); err != nil {
			t.Error(err)
		}
		if got, err := s.DeleteChanges(ctx); err != nil || !slices.Equal(got, []string{"x"}) {
			t.Errorf("deleted %v: %v", got, err)
		}
		if _, ok, err := s.FindChange(ctx, idOf("4")); err != nil || !ok {
			t.Errorf("a change of the active revision was deleted: %v", err)
		}
	})
}

func TestStageChange_DeletesTheOldest(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		for i := range store.MaxStagedChanges + 2 {
			if _, err := s.StageChange(t.Context(), store.StagedChange{ID: fmt.Sprintf("%064d", i)}); err != nil {
				t.Fatal(err)
			}
		}
		left := 0
		for i := range store.MaxStagedChanges + 2 {
			_, ok, err := s.FindChange(t.Context(), fmt.Sprintf("%064d", i))
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				left++
			}
		}
		if left != store.MaxStagedChanges {
			t.Errorf("%d changes are stored, want %d", left, store.MaxStagedChanges)
		}
	})
}
