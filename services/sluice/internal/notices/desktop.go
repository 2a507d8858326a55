package notices

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	desktopTitle = "Sluice"
	// desktopTimeout limits how long it may take to show one notice.
	desktopTimeout = 5 * time.Second
)

// A Desktop shows notices on the desktop of the user. The zero value is ready to use. A Desktop is not safe for
// concurrent use.
type Desktop struct {
	// shown is the D-Bus id of the previous notice, which the next notice replaces. It is 0 if there is no previous
	// notice.
	shown uint32
}

// Show shows a notice without buttons. The text must contain only fixed words, counts and identifiers.
func (d *Desktop) Show(ctx context.Context, body string) error {
	ctx, cancel := context.WithTimeout(ctx, desktopTimeout)
	defer cancel()
	if err := d.show(ctx, body); err != nil {
		return fmt.Errorf("show a desktop notice: %w", err)
	}
	return nil
}

// A program describes how to start a system program that shows a notice.
type program struct{ argv, env []string }

// appleScript returns a program that runs an AppleScript. It passes the body and the title as arguments, so that they
// do not become part of the script.
func appleScript(body string) program {
	return program{argv: []string{
		"/usr/bin/osascript", "-e", "on run argv", "-e", "display notification (item 1 of argv) with title (item 2 of argv)", "-e", "end run", body, desktopTitle,
	}}
}

// toastScript is a script for Windows PowerShell 5.1, which is part of Windows. Newer versions of PowerShell can't load
// the types that the script uses. Windows shows the notice as a notice of PowerShell, because this program has no
// identifier in the start menu.
const toastScript = `$ErrorActionPreference = 'Stop'
[void][Windows.UI.Notifications.ToastNotificationManager, Windows.UI.Notifications, ContentType = WindowsRuntime]
$toast = [Windows.UI.Notifications.ToastNotificationManager]::GetTemplateContent([Windows.UI.Notifications.ToastTemplateType]::ToastText02)
$lines = $toast.GetElementsByTagName('text')
[void]$lines.Item(0).AppendChild($toast.CreateTextNode($env:SLUICE_NOTICE_TITLE))
[void]$lines.Item(1).AppendChild($toast.CreateTextNode($env:SLUICE_NOTICE_BODY))
$sender = '{1AC14E77-02E7-4E5D-B744-2EB1AE5198B7}\WindowsPowerShell\v1.0\powershell.exe'
[Windows.UI.Notifications.ToastNotificationManager]::CreateToastNotifier($sender).Show([Windows.UI.Notifications.ToastNotification]::new($toast))`

// powerShell returns a program that runs toastScript. It passes the body and the title in environment variables, so
// that they do not become part of the script. The parameter windows is the path of the Windows directory.
func powerShell(windows, body string) program {
	return program{
		argv: []string{windows + `\System32\WindowsPowerShell\v1.0\powershell.exe`, "-NoProfile", "-NonInteractive", "-Command", strings.ReplaceAll(toastScript, "\n", "; ")},
		env:  []string{"SLUICE_NOTICE_TITLE=" + desktopTitle, "SLUICE_NOTICE_BODY=" + body},
	}
}
