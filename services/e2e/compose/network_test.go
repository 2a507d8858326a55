//go:build compose

package compose_test

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
)

// network contains the fields of `docker network inspect` that the tests read.
type network struct {
	Internal   bool
	Containers map[string]struct{ Name string }
	IPAM       struct {
		Config []struct{ Gateway string }
	}
}

// members lists the services on each internal network.
var members = map[string][]string{
	"mesh":       {"approval", "door", "gateway", "identity", "policy", "ratelimit", "wasmagent"},
	"traces":     {"approval", "door", "gateway", "identity", "jaeger", "policy", "ratelimit", "wasmagent"},
	"upstream":   {"demo", "gateway"},
	"everything": {"everything", "gateway"},
	"files":      {"files", "gateway"},
}

func networkStories(t *testing.T, d *deployment) {
	for name, want := range members {
		t.Run("members of "+name, func(t *testing.T) {
			n := d.network(t, name)
			var got []string
			for _, c := range n.Containers {
				got = append(got, strings.TrimSuffix(strings.TrimPrefix(c.Name, project+"-"), "-1"))
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" || !n.Internal {
				t.Errorf("internal %v, containers (-want +got):\n%s", n.Internal, diff)
			}
		})
	}
	d.upstreamStories(t)
	d.hostStories(t)
}

// upstreamStories connects to the demo server from several networks.
func (d *deployment) upstreamStories(t *testing.T) {
	demo := d.inspect(t, "demo")
	ip := demo.NetworkSettings.Networks[project+"_upstream"].IPAddress
	if ip == "" || len(demo.NetworkSettings.Networks) != 1 || len(demo.HostConfig.PortBindings) > 0 {
		t.Fatalf("the demo server's networks are %v, its ports %v", demo.NetworkSettings.Networks, demo.HostConfig.PortBindings)
	}
	t.Run("from its network the demo server responds", func(t *testing.T) {
		for _, host := range []string{"demo", ip} {
			// The server does not use TLS, but this error shows that it is reachable.
			if got := d.requestTools(t, "upstream", host+":8000"); !strings.Contains(got, "HTTP response to HTTPS client") {
				t.Errorf("%s: got %q, want a response", host, got)
			}
		}
	})
	for _, from := range []string{"mesh", "traces", "everything"} {
		t.Run("from "+from+" the demo server has no name and can't be reached", func(t *testing.T) {
			for _, host := range []string{"demo", ip} {
				if got := d.requestTools(t, from, host+":8000"); got != "" && !strings.Contains(got, "dial tcp") {
					t.Errorf("%s: got %q, want no connection", host, got)
				}
			}
		})
	}
}

// hostStories checks that containers can't connect to this machine. A listener accepts connections at every address of
// the machine.
func (d *deployment) hostStories(t *testing.T) {
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "0.0.0.0:0") // all addresses, because the test checks whether containers can reach any of them
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	go http.Serve(lis, http.NotFoundHandler()) // Serve returns when the test ends
	_, port, _ := net.SplitHostPort(lis.Addr().String())
	edge := d.network(t, "edge").IPAM.Config[0].Gateway
	t.Run("from edge this machine responds", func(t *testing.T) {
		if got := d.requestTools(t, "edge", net.JoinHostPort(edge, port)); !strings.Contains(got, "HTTP response to HTTPS client") {
			t.Errorf("got %q", got)
		}
	})
	for name := range members {
		t.Run("from "+name+" this machine can't be reached", func(t *testing.T) {
			for _, host := range []string{d.network(t, name).IPAM.Config[0].Gateway, edge} {
				if got := d.requestTools(t, name, net.JoinHostPort(host, port)); got != "" && !strings.Contains(got, "dial tcp") {
					t.Errorf("%s: got %q, want no connection", host, got)
				}
			}
		})
	}
}

func (d *deployment) network(t *testing.T, name string) network {
	t.Helper()
	var found []network
	if err := json.Unmarshal([]byte(d.run(t, commandTime, "docker", "network", "inspect", project+"_"+name)), &found); err != nil || len(found) != 1 {
		t.Fatalf("inspect the network %s: %d found, %v", name, len(found), err)
	}
	return found[0]
}

// requestTools starts a container on a network, sends a tools/list request from the container to an address, and
// returns the error. It returns "" if there was no response within 10 s.
func (d *deployment) requestTools(t *testing.T, network, addr string) string {
	t.Helper()
	const name = project + "-knock"
	t.Cleanup(func() { _, _ = d.tryRun(t, commandTime, "docker", "rm", "--force", name) }) // the container may have been removed already
	_, err := d.tryRun(t, 10*time.Second, "docker", "run", "--rm", "--name", name, "--network", project+"_"+network,
		"--env", "SLUICE_TOKEN=none", "--env", "SLUICE_URL=https://"+addr, d.image(t), "tools", "demo")
	_, _ = d.tryRun(t, commandTime, "docker", "rm", "--force", name)
	if err == nil {
		t.Fatalf("%s on %s responded as the gateway does", addr, network)
	}
	_, said, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSpace(said)
}
