/* reload: see reload.h. */
#include "daemon/reload.h"

#include "daemon/log.h"
#include "daemon/notify.h"

#include <string.h>

static bool reload_may_change(const char *name) {
    static const char *const names[] = {"daemon.allow_uids", "daemon.admin_uids",
                                        "daemon.log_level",  "limits.connections",
                                        "limits.lead_steps", "limits.steps_retained"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Defaults that follow from other keys change with those, and are not what was written. */
static bool reload_derived(const struct config_setting *before,
                           const struct config_setting *after) {
    return strcmp(before->origin, "default") == 0 && strcmp(after->origin, "default") == 0;
}

/* Refuses the first setting that is another and needs a restart. */
static int reload_compare(const struct config *running, const struct config *fresh,
                          struct error *error) {
    struct config_setting before, after;
    if (config_setting_count(running) != config_setting_count(fresh)) {
        return error_set(error, -EINVAL,
                         "datasets or sections were added or removed, which needs a restart");
    }
    for (size_t i = 0; i < config_setting_count(running); i++) {
        config_setting(running, i, &before);
        config_setting(fresh, i, &after);
        if (strcmp(before.name, after.name) != 0 || before.from != after.from) {
            return error_set(error, -EINVAL, "%s there is %s now, which needs a restart",
                             before.name, after.name);
        }
        if (strcmp(before.value, after.value) != 0 && !reload_may_change(before.name) &&
            !reload_derived(&before, &after)) {
            return error_set(error, -EINVAL,
                             "%s needs a restart to change from '%.128s' to '%.128s'", before.name,
                             before.value, after.value);
        }
    }
    return 0;
}

static void reload_take(struct config *running, const struct config *fresh) {
    memcpy(running->uids_serve, fresh->uids_serve, sizeof running->uids_serve);
    memcpy(running->uids_admin, fresh->uids_admin, sizeof running->uids_admin);
    running->uids_serve_count = fresh->uids_serve_count;
    running->uids_admin_count = fresh->uids_admin_count;
    running->log_level = fresh->log_level;
    running->connections_max = fresh->connections_max;
    running->lead_steps = fresh->lead_steps;
    running->steps_retained = fresh->steps_retained;
}

static int reload_config(struct daemon *daemon, struct error *error) {
    struct config *fresh = NULL;
    int code = config_load(daemon->options->config_path, daemon->options->overrides,
                           daemon->options->override_count, &fresh, error);
    if (code == 0) {
        code = reload_compare(daemon->config, fresh, error);
    }
    if (code == 0) {
        code = server_make_room(&daemon->server, fresh->connections_max, error);
    }
    if (code == 0) {
        reload_take(daemon->config, fresh);
        log_level(daemon->config->log_level);
    }
    config_destroy(fresh);
    return code;
}

void reload(struct daemon *daemon) {
    notify_reloading();
    if (reload_config(daemon, &daemon->not_reloaded) < 0) {
        log_line(LOG_ERR, "config", "not reloaded, the running config stays: %s",
                 daemon->not_reloaded.text);
    } else {
        daemon->not_reloaded = (struct error){0};
        log_line(LOG_NOTICE, "config", "reloaded");
    }
    notify_send("READY=1");
}
