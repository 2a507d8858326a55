package mesh_test

import (
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// Case F26. The test renews the keys and certificates of all mesh services, and no call fails. If a new file is
// invalid, the services log this and keep their old certificates.
func TestCertificates_RenewalFailsNoCall(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, "version: 1\nname: open\ndefault: allow\ntools:\n  limited: {rate_limit: {max: 100000, window: 60}}\n", "")
	c := a.Connect(t)
	stop := make(chan struct{})
	var calls atomic.Int32
	var calling sync.WaitGroup
	calling.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if resp := c.Call("limited", "{}"); resp.IsError(t) {
				t.Errorf("after %d calls: %s", calls.Load(), resp.Body)
				return
			}
			calls.Add(1)
		}
	})
	said := func(what string, times int) func() bool {
		return func() bool {
			for _, role := range authn.Roles() {
				if strings.Count(a.Log(role), what) < times {
					return false
				}
			}
			return true
		}
	}
	more := func() { // waits until more calls have run
		before := calls.Load()
		eventually.Holds(t, "calls continue", func() bool { return t.Failed() || calls.Load() > before+100 })
	}
	for round := range 2 {
		for _, role := range authn.Roles() {
			a.ReplaceCertificate(t, role)
		}
		eventually.Holds(t, "every role has its new certificate", said("certificates changed", round+1))
		more()
	}
	for _, role := range authn.Roles() {
		stack.WriteFile(t, filepath.Join(a.CertFolder(role), authn.RoleName(role)+"-key.pem"), "-----BEGIN PRIVATE KEY-----\nMC4C")
	}
	eventually.Holds(t, "files that can't be used are logged", said("certificates do not load", 1))
	more()
	close(stop)
	calling.Wait()
	if resp := a.Connect(t).Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("%s", resp.Body)
	}
}
