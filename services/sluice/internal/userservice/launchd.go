package userservice

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"strings"
)

const agentLabel = "com.github.sluice-mesh.sluice"

// launchd runs the service as a LaunchAgent, which can access the person's keychain.
type launchd struct{ s *Service }

func (m launchd) path() string {
	return filepath.Join(m.s.Home, "Library", "LaunchAgents", agentLabel+".plist")
}

func (m launchd) logPath() string { return filepath.Join(m.s.Data, "service.log") }

func (m launchd) body(env []variable) (string, error) {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
`)
	fmt.Fprintf(&b, "\t<key>Label</key>\n\t<string>%s</string>\n\t<key>ProgramArguments</key>\n\t<array>\n", agentLabel)
	// launchd does not limit the size of the log, so the service logs only warnings and errors.
	for _, arg := range []string{m.s.Program, "up", "--config", m.s.Config, "--log-level", "warn"} {
		fmt.Fprintf(&b, "\t\t<string>%s</string>\n", escapeXML(arg))
	}
	b.WriteString("\t</array>\n\t<key>EnvironmentVariables</key>\n\t<dict>\n")
	for _, v := range env {
		fmt.Fprintf(&b, "\t\t<key>%s</key>\n\t\t<string>%s</string>\n", v.Name, escapeXML(v.Value))
	}
	b.WriteString("\t</dict>\n\t<key>RunAtLoad</key>\n\t<true/>\n")
	b.WriteString("\t<key>KeepAlive</key>\n\t<dict>\n\t\t<key>SuccessfulExit</key>\n\t\t<false/>\n\t</dict>\n")
	b.WriteString("\t<key>ExitTimeOut</key>\n\t<integer>60</integer>\n")
	for _, key := range []string{"StandardOutPath", "StandardErrorPath"} {
		fmt.Fprintf(&b, "\t<key>%s</key>\n\t<string>%s</string>\n", key, escapeXML(m.logPath()))
	}
	b.WriteString("</dict>\n</plist>\n")
	return b.String(), nil
}

func escapeXML(value string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(value)) // a bytes.Buffer returns no error
	return b.String()
}

func (m launchd) domain() string { return "gui/" + m.s.UID }

func (m launchd) target() string { return m.domain() + "/" + agentLabel }

func (m launchd) check(ctx context.Context) error {
	if _, err := m.s.Run(ctx, "launchctl", "print", m.domain()); err != nil {
		return fmt.Errorf("%w: you are not logged in at the screen of this Mac, as over SSH (%w). "+
			"Run this command in a terminal there. Without a service, a client starts the mesh when it needs it", ErrNoManager, err)
	}
	return nil
}

func (m launchd) start(ctx context.Context, changed bool) error {
	if m.loaded(ctx) {
		if !changed {
			return m.run(ctx, "kickstart", m.target()) // does nothing if the service is running
		}
		if err := m.stop(ctx); err != nil {
			return err
		}
	}
	if err := m.run(ctx, "enable", m.target()); err != nil {
		return err
	}
	return m.run(ctx, "bootstrap", m.domain(), m.path())
}

func (m launchd) stop(ctx context.Context) error {
	if !m.loaded(ctx) {
		return nil
	}
	return m.run(ctx, "bootout", m.target())
}

func (m launchd) forget(context.Context) error { return nil }

func (m launchd) loaded(ctx context.Context) bool {
	_, err := m.s.Run(ctx, "launchctl", "print", m.target())
	return err == nil
}

func (m launchd) active(ctx context.Context) bool {
	out, err := m.s.Run(ctx, "launchctl", "print", m.target())
	return err == nil && strings.Contains(out, "state = running")
}

func (m launchd) logCommand() string { return m.logPath() }

func (m launchd) run(ctx context.Context, args ...string) error {
	if _, err := m.s.Run(ctx, "launchctl", args...); err != nil {
		return fmt.Errorf("change the service: %w", err)
	}
	return nil
}
