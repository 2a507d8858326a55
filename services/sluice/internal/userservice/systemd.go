package userservice

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

const unitName = "sluice.service"

// systemd runs the service as a unit of the person's systemd instance.
type systemd struct{ s *Service }

func (m systemd) path() string {
	base := m.s.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		base = filepath.Join(m.s.Home, ".config")
	}
	return filepath.Join(base, "systemd", "user", unitName)
}

func (m systemd) body(env []variable) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "[Unit]\nDescription=Sluice, the mesh for your MCP clients\n")
	fmt.Fprintf(&b, "ConditionPathExists=%s\n\n", escapeSpecifiers(m.s.Config))
	// The colon disables variable substitution. Without it, systemd would interpret a $ in the path.
	fmt.Fprintf(&b, "[Service]\nExecStart=%s up --config %s\n", quoteUnit(":"+m.s.Program), quoteUnit(m.s.Config))
	for _, v := range env {
		fmt.Fprintf(&b, "Environment=%s\n", quoteUnit(v.Name+"="+v.Value))
	}
	// Only the mesh gets SIGTERM. The mesh stops its servers after their requests have ended.
	b.WriteString("KillMode=mixed\nTimeoutStopSec=60\nRestart=on-failure\nRestartSec=5\n\n[Install]\nWantedBy=default.target\n")
	return b.String(), nil
}

// quoteUnit quotes a word for a unit file.
func quoteUnit(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(escapeSpecifiers(word)) + `"`
}

func escapeSpecifiers(value string) string { return strings.ReplaceAll(value, "%", "%%") }

func (m systemd) check(ctx context.Context) error {
	if _, err := m.ctl(ctx, "show-environment"); err != nil {
		return fmt.Errorf("%w: this session has no systemd user instance, as in a container or after su (%w). "+
			"Log in as the user, or start `sluice up --config %s` by the means that start other programs here. "+
			"Without a service, a client starts the mesh when it needs it", ErrNoManager, err, m.s.Config)
	}
	return nil
}

func (m systemd) start(ctx context.Context, changed bool) error {
	commands := [][]string{{"daemon-reload"}, {"enable", unitName}, {"restart", unitName}}
	if !changed {
		commands = [][]string{{"enable", unitName}, {"start", unitName}}
	}
	for _, args := range commands {
		if _, err := m.ctl(ctx, args...); err != nil {
			return fmt.Errorf("start the service: %w", err)
		}
	}
	return nil
}

func (m systemd) stop(ctx context.Context) error {
	if _, err := m.ctl(ctx, "disable", "--now", unitName); err != nil {
		return fmt.Errorf("end the service: %w", err)
	}
	return nil
}

func (m systemd) forget(ctx context.Context) error {
	_, err := m.ctl(ctx, "daemon-reload")
	return err
}

func (m systemd) active(ctx context.Context) bool {
	_, err := m.ctl(ctx, "is-active", unitName)
	return err == nil
}

func (m systemd) logCommand() string { return "journalctl --user -u " + unitName }

func (m systemd) ctl(ctx context.Context, args ...string) (string, error) {
	return m.s.Run(ctx, "systemctl", append([]string{"--user"}, args...)...)
}
