package policy_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy"
)

const (
	// maxReloadDelay is the time within which changed documents must become active.
	maxReloadDelay = 2 * time.Second
	// shortPause is shorter than the time for which files must stay unchanged before their content becomes active.
	shortPause = 300 * time.Millisecond

	allowDocument   = "version: 1\nname: p\ntools: {read: {action: allow}}\n"
	denyDocument    = "version: 1\nname: p\ntools: {read: {action: deny}}\n"
	invalidDocument = "version: 1\nname: p\ntools: {read: {action: alow}}\n"
)

// A reloadFixture is a service that watches a directory in a synctest bubble.
type reloadFixture struct {
	*testing.T
	svc *policy.Service
	dir string
	log *bytes.Buffer
}

// runReload runs the function test in a synctest bubble, with a service that watches a directory. The function set
// writes the first documents to the directory.
func runReload(t *testing.T, set func(t *testing.T, dir string), test func(r *reloadFixture)) {
	t.Helper()
	dir := t.TempDir()
	set(t, dir)
	synctest.Test(t, func(t *testing.T) {
		r := &reloadFixture{T: t, dir: dir, log: new(bytes.Buffer)}
		r.svc, _ = build(t, options{paths: []string{dir}, log: r.log})
		go func() {
			if err := r.svc.Run(t.Context()); err != nil {
				t.Errorf("Run: %v", err)
			}
		}()
		test(r)
	})
}

func oneDocument(text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { t.Helper(); write(t, dir, "policy.yaml", text) }
}

func (r *reloadFixture) write(name, text string) { r.Helper(); write(r.T, r.dir, name, text) }

func (r *reloadFixture) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *reloadFixture) effect(tool string) policyv1.Effect {
	r.Helper()
	ctx := authn.WithCaller(r.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY, Principal: ana()})
	resp, err := r.svc.DecideCall(ctx, &policyv1.DecideCallRequest{Call: call(tool)})
	if err != nil {
		r.Fatal(err)
	}
	return resp.GetDecision().GetEffect()
}

func (r *reloadFixture) revision() *policyv1.GetRevisionResponse {
	r.Helper()
	ctx := authn.WithCaller(r.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY})
	resp, err := r.svc.GetRevision(ctx, new(policyv1.GetRevisionRequest))
	if err != nil {
		r.Fatal(err)
	}
	return resp
}

// wantState waits for [maxReloadDelay]. Then it checks the decision on a call. It also checks whether the revision has
// changed since the last check, and whether documents were rejected.
func (r *reloadFixture) wantState(effect policyv1.Effect, changed, rejected bool) {
	r.Helper()
	before := r.revision().GetRevision()
	time.Sleep(maxReloadDelay)
	synctest.Wait()
	after := r.revision().GetRevision()
	if got := r.effect("read"); got != effect {
		r.Errorf("a call is decided as %v, want %v", got, effect)
	}
	if got := after.GetId() != before.GetId(); got != changed {
		r.Errorf("there is a new revision: %v, want %v", got, changed)
	}
	if (after.GetActivation() != before.GetActivation()) != changed || after.GetActivated().AsTime().Equal(before.GetActivated().AsTime()) == changed {
		r.Errorf("the activation went from %v to %v", before, after)
	}
	if changed && after.GetActivation() <= before.GetActivation() {
		r.Errorf("the activation %q is not later than %q", after.GetActivation(), before.GetActivation())
	}
	if got := len(after.GetRejected()) > 0; got != rejected {
		r.Errorf("something was rejected: %v (%v), want %v", got, after.GetRejected(), rejected)
	}
	if !after.GetActive() {
		r.Error("the revision is not active")
	}
}

const (
	allowed = policyv1.Effect_EFFECT_ALLOW
	denied  = policyv1.Effect_EFFECT_DENY
)

func TestReload_ActivatesAChangeInPlace(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		r.wantState(allowed, false, false)
		r.write("policy.yaml", denyDocument)
		r.wantState(denied, true, false)
		r.write("policy.yaml", allowDocument)
		r.wantState(allowed, true, false)
		if got := strings.Count(r.log.String(), "policies changed"); got != 2 {
			r.Errorf("the log has %d changes, want 2:\n%s", got, r.log)
		}
	})
}

func TestReload_RevisionStaysWhenOnlyCommentsChange(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		r.write("policy.yaml", allowDocument)
		r.wantState(allowed, false, false)
		commented := "# read by people\n" + allowDocument
		r.write("policy.yaml", commented)
		r.wantState(allowed, false, false)
		if got := r.revision().GetDocuments()[0].GetText(); got != commented {
			r.Errorf("the document reads %q, want %q", got, commented)
		}
		if r.log.Len() > 0 {
			r.Errorf("the log has\n%s", r.log)
		}
	})
}

func TestReload_KeepsTheRevisionWhenADocumentIsInvalid(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		r.write("policy.yaml", invalidDocument)
		r.wantState(allowed, false, true)
		found := r.revision().GetRevision().GetRejected()
		file := filepath.Join(r.dir, "policy.yaml")
		if len(found) != 1 || found[0].GetPath() != file || found[0].GetLine() != 3 || found[0].GetColumn() != 24 ||
			found[0].GetSeverity() != policyv1.Severity_SEVERITY_ERROR || !strings.Contains(found[0].GetMessage(), "alow") {
			r.Errorf("the finding does not have the position: %v", found)
		}
		if docs := r.revision().GetDocuments(); len(docs) != 1 || docs[0].GetText() != allowDocument {
			r.Errorf("the documents differ from the active revision: %v", docs)
		}
		if got := strings.Count(r.log.String(), "do not load"); got != 1 || !strings.Contains(r.log.String(), "policy.yaml:3:24") {
			r.Errorf("the log has the problem %d times, want once, with the position:\n%s", got, r.log)
		}
		r.write("policy.yaml", allowDocument)
		r.wantState(allowed, false, false)
		r.write("policy.yaml", invalidDocument)
		r.wantState(allowed, false, true)
		r.write("policy.yaml", denyDocument)
		r.wantState(denied, true, false)
	})
}

func TestReload_ActivatesAnAtomicRename(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		r.write(".policy.yaml.tmp", denyDocument)
		r.wantState(allowed, false, false)
		r.must(os.Rename(filepath.Join(r.dir, ".policy.yaml.tmp"), filepath.Join(r.dir, "policy.yaml")))
		r.wantState(denied, true, false)
	})
}

func TestReload_ActivatesAConfigMapUpdate(t *testing.T) {
	t.Parallel()
	version := func(t *testing.T, dir, name, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), "policy.yaml", text)
	}
	link := func(t *testing.T, dir, to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	mounted := func(t *testing.T, dir string) {
		t.Helper()
		version(t, dir, "..2026_11_21_07_00_00.1", allowDocument)
		link(t, dir, "..2026_11_21_07_00_00.1", "..data")
		link(t, dir, "..data/policy.yaml", "policy.yaml")
	}
	runReload(t, mounted, func(r *reloadFixture) {
		r.wantState(allowed, false, false)
		for i, next := range []struct {
			text     string
			effect   policyv1.Effect
			changed  bool
			rejected bool
		}{{denyDocument, denied, true, false}, {invalidDocument, denied, false, true}, {allowDocument, allowed, true, false}} {
			name := fmt.Sprintf("..2026_11_21_08_00_00.%d", i)
			version(r.T, r.dir, name, next.text)
			link(r.T, r.dir, name, "..data_tmp")
			r.must(os.Rename(filepath.Join(r.dir, "..data_tmp"), filepath.Join(r.dir, "..data")))
			r.wantState(next.effect, next.changed, next.rejected)
		}
	})
}

// Kubernetes repeatedly replaces a folder that contains two documents. If ReadDocuments returns no error, it returns
// both documents in the same version.
func TestReadDocuments_NeverMixVersionsOfAConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	replaceData := func(version int) error {
		name := fmt.Sprintf("..version-%d", version)
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
		for _, file := range []string{"a.yaml", "b.yaml"} {
			if err := os.WriteFile(filepath.Join(dir, name, file), []byte(name), 0o600); err != nil {
				return err
			}
		}
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			return err
		}
		return os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..version-%d", version-1)))
	}
	if err := replaceData(1); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"a.yaml", "b.yaml"} {
		if err := os.Symlink("..data/"+file, filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		var err error
		for version := 2; version < 400 && err == nil; version++ {
			time.Sleep(time.Duration(version%7) * 100 * time.Microsecond)
			err = replaceData(version)
		}
		done <- err
	}()
	for whole := 0; ; {
		select {
		case err := <-done:
			if err != nil || whole == 0 {
				t.Errorf("%d readings succeeded: %v", whole, err)
			}
			return
		default:
		}
		documents, err := policy.ReadDocuments([]string{dir})
		if err != nil {
			continue
		}
		if whole++; len(documents) != 2 || documents[0].GetText() != documents[1].GetText() {
			t.Fatalf("documents of two versions were read: %v", documents)
		}
	}
}

func TestReload_KeepsTheRevisionWhenTheFolderIsMissingOrEmpty(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		away := r.dir + "-away"
		r.must(os.Rename(r.dir, away))
		r.wantState(allowed, false, true)
		if docs := r.revision().GetDocuments(); len(docs) != 1 || docs[0].GetText() != allowDocument {
			r.Errorf("the documents differ from the active revision: %v", docs)
		}
		r.must(os.Mkdir(r.dir, 0o700))
		r.wantState(allowed, false, true)
		if why := r.revision().GetRevision().GetRejected()[0].GetMessage(); !strings.Contains(why, "no policy document") {
			r.Errorf("the finding does not say that the folder is empty: %q", why)
		}
		r.write("policy.yaml", denyDocument)
		r.wantState(denied, true, false)
		r.must(os.RemoveAll(r.dir))
		r.wantState(denied, false, true)
		r.must(os.Rename(away, r.dir))
		r.wantState(allowed, true, false)
	})
}

func TestReload_ActivatesAddedAndRemovedFiles(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		r.write("second.yaml", strings.Replace(denyDocument, "name: p", "name: q", 1))
		r.wantState(denied, true, false)
		r.must(os.Remove(filepath.Join(r.dir, "second.yaml")))
		r.wantState(allowed, true, false)
		r.write("THIRD.JSON", `{"version": 1, "rules": [{"name": "none", "action": "deny"}]}`)
		r.wantState(denied, true, false)
		r.must(os.Remove(filepath.Join(r.dir, "THIRD.JSON")))
		r.wantState(allowed, true, false)
		r.write("notes.txt", "no policy")
		r.write(".hidden.yaml", invalidDocument)
		r.must(os.Mkdir(filepath.Join(r.dir, "folder.yaml"), 0o700))
		r.wantState(allowed, false, false)
		r.write("same-name.yaml", denyDocument)
		r.wantState(allowed, false, true)
	})
}

func TestReload_IgnoresAPartlyWrittenFile(t *testing.T) {
	t.Parallel()
	whole := "version: 1\nname: p\ndefault: allow\ntools:\n  other: {action: allow}\n  read: {action: deny}\n"
	half, _, _ := strings.Cut(whole, "  read")
	runReload(t, oneDocument(whole), func(r *reloadFixture) {
		for i := range 20 { // at different phases of the service's scans
			r.write("policy.yaml", half)
			for range 2 {
				time.Sleep(shortPause / 2)
				synctest.Wait()
				if got := r.effect("read"); got != denied {
					r.Fatalf("a partly written document became active: a call is decided as %v", got)
				}
			}
			r.write("policy.yaml", whole)
			time.Sleep(maxReloadDelay + time.Duration(i)*31*time.Millisecond)
		}
		r.wantState(denied, false, false)
		if r.log.Len() > 0 {
			r.Errorf("the log has\n%s", r.log)
		}
	})
}

func TestReload_ActivatesADocumentOfTenThousandEntries(t *testing.T) {
	t.Parallel()
	long := func(read string) string {
		var b strings.Builder
		b.WriteString("version: 1\nname: p\ntools:\n")
		for i := range 10_000 {
			fmt.Fprintf(&b, "  tool-%d: {action: deny, rate_limit: {max: 10, window: 60}}\n", i)
		}
		return b.String() + "  read: {action: " + read + "}\n"
	}
	runReload(t, oneDocument(long("allow")), func(r *reloadFixture) {
		r.wantState(allowed, false, false)
		r.write("policy.yaml", long("deny"))
		r.wantState(denied, true, false)
		if got := r.effect("tool-9999"); got != denied {
			r.Errorf("a call of the last entry is decided as %v", got)
		}
	})
}
