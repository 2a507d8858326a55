// Package limits runs a real mesh with stdio servers that try to exhaust the machine's tasks, memory, disk space and
// inotify instances. Each attack stops by itself at a few thousand tasks or a few hundred MiB.
package limits
