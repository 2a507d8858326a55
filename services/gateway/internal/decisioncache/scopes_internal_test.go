package decisioncache

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// The scopes follow the policy. They are not known before the first message of the policy service, and after the
// service has sent no message for 2 s.
func TestNeededScopes_AreThoseOfTheActivePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDecisions(t)
		want := func(when, github, files, all string) {
			t.Helper()
			for server, scopes := range map[string]string{"github": github, "files": files, "other": "", "": all} {
				if got := strings.Join(d.NeededScopes(server), " "); got != scopes {
					t.Errorf("%s: the server %q needs %q, want %q", when, server, got, scopes)
				}
			}
		}
		want("before the first message", "", "", "")
		first := leased("e1")
		first.NeededScopes = []*policyv1.ServerScopes{{Server: "files", Scopes: []string{"read", "write"}}, {Server: "github", Scopes: []string{"admin", "read"}}}
		d.applyResponse(first, &d.now)
		want("with a lease", "admin read", "read write", "admin read write")
		time.Sleep(silence)
		want("after 2 s", "admin read", "read write", "admin read write")
		time.Sleep(time.Millisecond)
		want("when the policy service is silent", "", "", "")
		d.applyResponse(first, &d.now)
		want("when it is back", "admin read", "read write", "admin read write")
		d.applyResponse(&policyv1.LeaseRevisionResponse{Epoch: "e2", NeededScopes: []*policyv1.ServerScopes{{Server: "github", Scopes: []string{"admin"}}}}, &d.now)
		want("after a change", "admin", "", "admin")
		d.applyResponse(new(policyv1.LeaseRevisionResponse), &d.now)
		want("without an active revision", "", "", "")
	})
}
