package cli

import (
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// brokenInstall matches the errors that npm and Node.js print if a package is only partly installed.
	brokenInstall = regexp.MustCompile(`ENOTEMPTY|MODULE_NOT_FOUND|Cannot find (module|package)`)
	// npxDirectory matches the directory of a package in the cache of npx.
	npxDirectory = regexp.MustCompile(`(/|[A-Za-z]:\\)[^'":\r\n]*[/\\]_npx[/\\][0-9a-f]{8,}`)
	// stackFrame matches the lines that follow an error message in the output of Node.js, Python and npm.
	stackFrame = regexp.MustCompile(`^(at |File "|node:|Node\.js v|npm (error|ERR!) (A complete log|code |errno |syscall |path |signal )|throw |[\^~{}()\[\],;]+$)|^[a-z]\w*: ('|\[|undefined|-?\d+,?$)`)
	// errorMessage matches a line that contains an error message.
	errorMessage = regexp.MustCompile(`(?i)error|exception|panic|fatal|cannot|can't|not found|denied|missing|required|invalid|failed`)
)

// damagedCache returns the directory in the cache of npx that contains an incomplete package according to a server's
// output. It returns "" if the output names no such directory.
func damagedCache(output string) string {
	if !brokenInstall.MatchString(output) {
		return ""
	}
	if dir := npxDirectory.FindString(output); dir != "" {
		return filepath.Clean(dir)
	}
	return ""
}

// lastMessage returns the last line of a program's output that contains an error message. If there is no such line, it
// returns the last line that is not part of a stack trace. If all lines are part of a stack trace, it returns the last
// line.
func lastMessage(output string) string {
	var last, plain, message string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		last = line
		if stackFrame.MatchString(line) {
			continue
		}
		plain = line
		if errorMessage.MatchString(line) {
			message = line
		}
	}
	for _, line := range []string{message, plain} {
		if line != "" {
			return line
		}
	}
	return last
}

// trialFault describes, on one line, why the tools of a server can't be listed.
func trialFault(err error) string {
	text := err.Error()
	if dir := damagedCache(text); dir != "" {
		return "its npx cache is damaged: remove " + dir
	}
	head, output, found := strings.Cut(text, stderrBegins)
	if !found {
		return text
	}
	return head + "; its standard error says: " + lastMessage(output) + " (start it yourself to see the rest)"
}
