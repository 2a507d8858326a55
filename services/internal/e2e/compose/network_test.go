//go:build compose

package compose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
)

func networkStories(t *testing.T, d *deployment) {
	demo := d.inspect(t, "demo")
	upstream, mesh := project+"_upstream", project+"_mesh"
	t.Run("who shares a network with the demo server", func(t *testing.T) {
		var found []struct {
			Internal   bool
			Containers map[string]struct{ Name string }
		}
		if err := json.Unmarshal([]byte(d.run(t, commandTime, "docker", "network", "inspect", upstream)), &found); err != nil || len(found) != 1 {
			t.Fatalf("inspect the network: %d found, %v", len(found), err)
		}
		var names []string
		for _, c := range found[0].Containers {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		want := []string{project + "-demo-1", project + "-gateway-1"}
		if diff := cmp.Diff(want, names); diff != "" || !found[0].Internal {
			t.Errorf("internal %v, containers (-want +got):\n%s", found[0].Internal, diff)
		}
		if len(demo.NetworkSettings.Networks) != 1 || len(demo.HostConfig.PortBindings) > 0 {
			t.Errorf("the demo server's networks are %v, its ports %v", demo.NetworkSettings.Networks, demo.HostConfig.PortBindings)
		}
	})
	ip := demo.NetworkSettings.Networks[upstream].IPAddress
	if ip == "" {
		t.Fatalf("the demo server has no address: %+v", demo.NetworkSettings)
	}
	t.Run("from its network the demo server answers", func(t *testing.T) {
		for _, host := range []string{"demo", ip} {
			// It has no /mcp/demo: what it answers is that.
			if got := d.knock(t, upstream, host); !strings.Contains(got, "Not Found") {
				t.Errorf("asked %s, got %q, want an answer", host, got)
			}
		}
	})
	t.Run("from the mesh it is neither named nor reached", func(t *testing.T) {
		for _, host := range []string{"demo", ip} {
			if got := d.knock(t, mesh, host); got != "" && !strings.Contains(got, "dial tcp") {
				t.Errorf("asked %s, got %q, want no connection", host, got)
			}
		}
	})
}

// knock asks a host on a network for its tools, with a container of its own, and
// returns how that failed; empty where nothing came in 10 s.
func (d *deployment) knock(t *testing.T, network, host string) string {
	t.Helper()
	const name = project + "-knock"
	t.Cleanup(func() { _, _ = d.try(t, commandTime, "docker", "rm", "--force", name) }) // it may have gone by itself
	image := strings.TrimSpace(d.compose(t, "config", "--images", "demo"))
	_, err := d.try(t, 10*time.Second, "docker", "run", "--rm", "--name", name, "--network", network,
		"--env", "SLUICE_TOKEN=none", "--env", "SLUICE_URL=http://"+host+":8000", image, "tools", "demo")
	_, _ = d.try(t, commandTime, "docker", "rm", "--force", name)
	if err == nil {
		t.Fatalf("%s on %s answered as if it were the gateway", host, network)
	}
	_, said, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSpace(said)
}
