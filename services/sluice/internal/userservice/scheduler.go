package userservice

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf16"
)

const taskName = `\Sluice\mesh`

// scheduler runs the service as a task of the Windows Task Scheduler, because a Windows service could not access the
// person's keychain.
type scheduler struct{ s *Service }

func (m scheduler) path() string { return filepath.Join(m.s.Data, "service.xml") }

// task returns the name of the task. It contains the user's name, because the tasks of all users are in the same
// directory.
func (m scheduler) task() string {
	return taskName + " of " + strings.NewReplacer(`\`, " ", "/", " ").Replace(m.s.User)
}

// body ignores the environment, because a task gets the user's and the system's variables.
//
// Without conhost --headless, a console window would stay open while the mesh is running.
func (m scheduler) body([]variable) (string, error) {
	if strings.Contains(m.s.Program+m.s.Config, `"`) {
		return "", fmt.Errorf("the path %s or %s has a quotation mark", m.s.Program, m.s.Config)
	}
	arguments := fmt.Sprintf(`--headless "%s" up --config "%s" --log-level warn`, m.s.Program, m.s.Config)
	return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>Sluice, the mesh for your MCP clients</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Enabled>true</Enabled>
      <UserId>%[1]s</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>%[1]s</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>3</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>%%SystemRoot%%\System32\conhost.exe</Command>
      <Arguments>%[2]s</Arguments>
    </Exec>
  </Actions>
</Task>
`, escapeXML(m.s.User), escapeXML(arguments)), nil
}

func (m scheduler) check(ctx context.Context) error {
	if _, err := m.s.Run(ctx, "schtasks", "/?"); err != nil {
		return fmt.Errorf("%w: the Task Scheduler can't be used (%w). Without a service, a client starts the mesh when it needs it", ErrNoManager, err)
	}
	return nil
}

func (m scheduler) start(ctx context.Context, changed bool) error {
	if changed && m.exists(ctx) {
		_, _ = m.s.Run(ctx, "schtasks", "/End", "/TN", m.task()) // fails if the task is not running
	}
	if _, err := m.s.Run(ctx, "schtasks", "/Create", "/F", "/TN", m.task(), "/XML", m.path()); err != nil {
		return fmt.Errorf("create the task: %w", err)
	}
	if _, err := m.s.Run(ctx, "schtasks", "/Run", "/TN", m.task()); err != nil {
		return fmt.Errorf("start the task: %w", err)
	}
	return nil
}

func (m scheduler) stop(ctx context.Context) error {
	if !m.exists(ctx) {
		return nil
	}
	_, _ = m.s.Run(ctx, "schtasks", "/End", "/TN", m.task()) // fails if the task is not running
	if _, err := m.s.Run(ctx, "schtasks", "/Delete", "/F", "/TN", m.task()); err != nil {
		return fmt.Errorf("remove the task: %w", err)
	}
	return nil
}

func (m scheduler) forget(context.Context) error { return nil }

func (m scheduler) exists(ctx context.Context) bool {
	_, err := m.s.Run(ctx, "schtasks", "/Query", "/TN", m.task())
	return err == nil
}

// active reports whether the task exists. It can't read the state of the task, because the name of the state depends on
// the language of Windows. The announcement of the mesh shows whether the mesh is running.
func (m scheduler) active(ctx context.Context) bool { return m.exists(ctx) }

func (m scheduler) logCommand() string { return "" }

// encodeUTF16 returns text in the encoding for schtasks: little endian, with a byte order mark and Windows line
// endings.
func encodeUTF16(text string) []byte {
	out := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(strings.ReplaceAll(text, "\n", "\r\n"))) {
		out = binary.LittleEndian.AppendUint16(out, unit)
	}
	return out
}

func decodeUTF16(raw []byte) string {
	const size = 2
	var units []uint16
	for ; len(raw) >= size; raw = raw[size:] {
		units = append(units, binary.LittleEndian.Uint16(raw))
	}
	return strings.ReplaceAll(strings.TrimPrefix(string(utf16.Decode(units)), "\ufeff"), "\r\n", "\n")
}
