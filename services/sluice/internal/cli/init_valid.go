package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// leaveInvalid removes servers from the plan that the mesh's configuration can't contain. It does not change their
// entries.
func (s *setup) leaveInvalid() {
	for _, server := range s.plan.New() {
		if err := checkServer(server); err != nil {
			_, reason, found := strings.Cut(err.Error(), "servers."+server.Name+".")
			if !found {
				reason = err.Error()
			}
			s.plan.Leave(server.Name, "has a definition that the mesh refuses: "+reason)
		}
	}
}

// checkServer returns the error from loading a configuration with only this server.
func checkServer(s clientsetup.Server) error {
	references := make(map[clientsetup.SecretKey]string)
	for _, v := range s.Secrets() {
		references[clientsetup.SecretKey{Server: s.Name, Setting: v.Name}] = "${env:SLUICE_SECRET}"
	}
	const operator = "SLUICE_OPERATOR"
	file := clientsetup.MeshFile{Data: filepath.Join(os.TempDir(), "data"), User: "init", Servers: []clientsetup.Server{s}, References: references}
	raw, err := file.Edit(nil)
	if err != nil {
		return err
	}
	raw = []byte(strings.ReplaceAll(string(raw), "${file:"+file.Operator+"}", "${env:"+operator+"}"))
	_, err = config.Parse("sluice.yaml", raw, func(name string) (string, bool) {
		if name == "SLUICE_SECRET" || name == operator {
			return strings.Repeat("x", 40), true //nolint:mnd // longer than the minimum length of tokens
		}
		return app.Env(name)
	})
	return err
}
