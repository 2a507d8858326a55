//go:build compose

package compose_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	gocmp "github.com/google/go-cmp/cmp"
)

// container contains the fields of `docker inspect` that the tests read.
type container struct {
	ID     string `json:"Id"`
	Config struct{ User string }
	State  struct {
		Status string
		Health *struct{ Status string }
	}

	HostConfig struct {
		ReadonlyRootfs bool
		Privileged     bool
		CapDrop        []string
		CapAdd         []string
		SecurityOpt    []string
		Memory         int64
		PidsLimit      *int64
		LogConfig      struct {
			Type   string
			Config map[string]string
		}
		PortBindings map[string][]struct{ HostIp string } // Docker spells the name HostIp
	}
	Mounts []struct {
		Type, Name, Destination string
		RW                      bool
	}
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

// inspect returns the container that runs a service.
func (d *deployment) inspect(t *testing.T, service string) container {
	t.Helper()
	id := strings.TrimSpace(d.compose(t, "ps", "--all", "--quiet", service))
	var found []container
	if err := json.Unmarshal([]byte(d.run(t, commandTime, "docker", "inspect", id)), &found); err != nil || len(found) != 1 {
		t.Fatalf("inspect %s: %d containers, %v", service, len(found), err)
	}
	return found[0]
}

// volumes lists the volumes that each container mounts in addition to the configuration. "rw" means writable, "ro"
// read-only.
var volumes = map[string][]string{
	"setup": {
		"approval-keys rw", "ca rw", "gateway-keys rw", "identity-keys rw", "operator rw", "policy-keys rw", "ratelimit-keys rw", "wasmagent-keys rw",
	},
	"gateway":   {"gateway-data rw", "gateway-keys ro"},
	"identity":  {"identity-data rw", "identity-keys ro"},
	"policy":    {"policy-data rw", "policy-keys ro"},
	"ratelimit": {"ratelimit-keys ro"},
	"approval":  {"approval-data rw", "approval-keys ro"},
	"wasmagent": {"wasmagent-data rw", "wasmagent-keys ro"},
	"door":      nil,
	"demo":      nil,
	"jaeger":    nil,

	"everything": nil,
	"files":      {"shared rw"},
}

// users contains the users of the containers that do not run the mesh's image.
var users = map[string]string{"everything": "65601:65601", "files": "65602:65602"}

// withoutHealthCheck lists the services without a health check. setup exits when it has finished, and door only
// forwards connections to services that have a health check.
var withoutHealthCheck = []string{"setup", "door"}

func confinedStories(t *testing.T, d *deployment) {
	services := strings.Fields(d.compose(t, "config", "--services"))
	for _, service := range services {
		t.Run(service, func(t *testing.T) {
			c := d.inspect(t, service)
			if want := cmp.Or(users[service], "65532:65532"); c.Config.User != want {
				t.Errorf("the container runs as %q, want %s", c.Config.User, want)
			}
			if well := c.State.Health != nil && c.State.Health.Status == "healthy"; well == slices.Contains(withoutHealthCheck, service) {
				t.Errorf("the health of the container is %+v", c.State.Health)
			}
			h := c.HostConfig
			if !h.ReadonlyRootfs || h.Privileged || !slices.Equal(h.CapDrop, []string{"ALL"}) || len(h.CapAdd) > 0 {
				t.Errorf("read-only %v, privileged %v, capabilities -%v +%v", h.ReadonlyRootfs, h.Privileged, h.CapDrop, h.CapAdd)
			}
			if !slices.Contains(h.SecurityOpt, "no-new-privileges:true") {
				t.Errorf("security options %v", h.SecurityOpt)
			}
			if h.Memory <= 0 || h.Memory > 1<<30 || h.PidsLimit == nil || *h.PidsLimit <= 0 {
				t.Errorf("memory %d, processes %v: want bounds", h.Memory, h.PidsLimit)
			}
			if h.LogConfig.Config["max-size"] == "" || h.LogConfig.Config["max-file"] == "" {
				t.Errorf("the log configuration is %+v, want a bound", h.LogConfig)
			}
			for port, bound := range h.PortBindings {
				for _, b := range bound {
					if b.HostIp != "127.0.0.1" {
						t.Errorf("port %s is published on %q", port, b.HostIp)
					}
				}
			}
			want, known := volumes[service]
			if diff := gocmp.Diff(want, listVolumes(t, c)); diff != "" || !known {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
		})
	}
	if len(services) != len(volumes) {
		t.Errorf("the services are %v", services)
	}
	t.Run("nothing is written outside a volume", func(t *testing.T) {
		for _, dir := range []string{"/new", "/operator/new", "/etc/sluice/new"} {
			_, err := d.tryRun(t, commandTime, "docker", "compose", "run", "--rm", "sluice", "certs", "--dir", dir)
			if err == nil || !strings.Contains(err.Error(), "read-only file system") {
				t.Errorf("writing to %s: %v", dir, err)
			}
		}
	})
}

// listVolumes returns the volumes of a container, without the project's name. The test fails if the container has any
// mount other than volumes and a read-only mount of the configuration.
func listVolumes(t *testing.T, c container) []string {
	t.Helper()
	var out []string
	for _, m := range c.Mounts {
		mode := " ro"
		if m.RW {
			mode = " rw"
		}
		switch {
		case m.Type == "volume":
			out = append(out, strings.TrimPrefix(m.Name, project+"_")+mode)
		case m.Type != "bind" || m.Destination != "/etc/sluice" || m.RW:
			t.Errorf("the container mounts a %s at %s,%s", m.Type, m.Destination, mode)
		}
	}
	slices.Sort(out)
	return out
}
